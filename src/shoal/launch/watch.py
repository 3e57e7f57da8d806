"""Watch: descriptors of this process, each with what reads it as soon as there is something to read."""

from __future__ import annotations

import selectors
from collections.abc import Callable

Read = Callable[[], bool]
"""Reads once, without blocking; False when nothing more will come, and the descriptor is not watched any longer."""


class Watch:
    """Readers may add and drop others, and close their descriptors, while it turns.

    Numbers of closed descriptors come back at once: what was ready under the old meaning of a number is never taken
    for the new one's.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def add(self, descriptor: int, read: Read) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, read)

    def drop(self, descriptor: int) -> None:
        """Before it is closed. Does nothing where it is not watched."""
        if descriptor in self:
            self._selector.unregister(descriptor)

    def __contains__(self, descriptor: int) -> bool:
        return self._selector.get_map().get(descriptor) is not None

    def turn(self, wait_s: float) -> None:
        """Waits until something can be read, at most `wait_s` seconds, and reads it."""
        for key, _ in self._selector.select(wait_s):
            if self._is_valid(key) and not key.data() and self._is_valid(key):
                self._selector.unregister(key.fd)

    def close(self) -> None:
        self._selector.close()

    def _is_valid(self, key: selectors.SelectorKey) -> bool:
        return self._selector.get_map().get(key.fd) is key
