"""Beats: signs of work that takes long that it gets on, from deep inside it to whoever watches over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_told: ContextVar[tuple[Callable[[], object], ...]] = ContextVar("told", default=())


def beat() -> None:
    """The work gets on. To be called in the thread that was asked for the work."""
    for tell in _told.get():
        tell()


@contextmanager
def heard(by: Callable[[], object]) -> Iterator[None]:
    """Within it, `by` is called at each beat, beside those that hear them already."""
    token = _told.set((*_told.get(), by))
    try:
        yield
    finally:
        _told.reset(token)
