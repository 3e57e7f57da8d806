"""Below: the descendants of this process, and how all of them are killed, however often they fork meanwhile.

A process that adopts orphans (`adopt_orphans`) has everything below it that was ever started by it: setsid, double
forks and other names change nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

_ROUND_S = 0.005


@dataclass(frozen=True)
class Below:
    """A descendant that has not ended."""

    pid: int
    started: int
    """Ticks since the system's start; with the pid it names one process for ever."""
    state: str
    """One letter as in /proc: R running, S asleep, D in the kernel, T stopped …"""
    name: str


def below(spare: Collection[int] = ()) -> list[Below]:
    """Living descendants of this process, without those in `spare`, whose own descendants count all the same."""
    if sys.platform != "linux":
        return []
    children: dict[int, list[tuple[int, Below]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := _read(int(name))):
            children.setdefault(found[0], []).append(found)
    todo, living = [os.getpid()], []
    while todo:
        for _, process in children.get(todo.pop(), ()):
            todo.append(process.pid)
            if process.state not in "ZX" and process.pid not in spare:
                living.append(process)
    return living


def kill_below(
    spare: Collection[int] = (), limit_s: float = 5.0, beat: Callable[[], None] = lambda: None
) -> list[Below]:
    """Kills all descendants but those in `spare`; those still there after `limit_s` seconds, which hang in the kernel.

    `beat` is called between the rounds.
    """
    limit = time.monotonic() + limit_s
    empty = 0
    while True:
        left = below(spare)
        for process in left:
            _kill(process)
        empty = 0 if left else empty + 1  # one look can miss a child whose parent ends while it is read
        if empty == 2 or time.monotonic() >= limit:
            return left
        beat()
        time.sleep(_ROUND_S)


def _kill(process: Below) -> None:
    """SIGKILL to this very process, or to nobody."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        now = _read(process.pid)  # held by the handle, the number cannot change hands any more
        if now and now[1].started == process.started:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        pass
    finally:
        os.close(handle)


def _read(pid: int) -> tuple[int, Below] | None:
    """Its parent, and itself."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            head, _, rest = file.read().rpartition(b")")
        fields = rest.split()
        name = head.partition(b"(")[2].decode(errors="replace")
        return int(fields[1]), Below(pid, int(fields[19]), fields[0].decode(), name)
    except (OSError, ValueError, IndexError):
        return None
