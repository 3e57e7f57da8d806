"""Leash: a process ends when the agent that started it ends, by whatever cause and whatever it is doing.

Two leashes, both armed in the child between fork and exec, so that any program wears them: the system sends SIGKILL
when the agent dies (PR_SET_PDEATHSIG), and when the last descriptor of a pipe's other end closes (F_SETSIG). Neither
needs the program's help: they also reach C code that holds Python's lock. Linux only; elsewhere nothing is armed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_NONE = (-1, -1)


class Leash:
    """One child's. The first leash hangs on the thread that starts the child: start it from the main thread."""

    def __init__(self) -> None:
        self._child_end, self._held = os.pipe() if _LINUX else _NONE
        self.descriptors = (self._child_end,) if _LINUX else ()
        """What the child must inherit."""
        self.arm: Callable[[], None] | None = self._armer() if _LINUX else None
        """To be called in the child between fork and exec."""

    def started(self) -> None:
        """The child has its end."""
        if self._child_end >= 0:
            os.close(self._child_end)
            self._child_end = -1

    def drop(self) -> None:
        """The child has ended (or is to be killed)."""
        self.started()
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def _armer(self) -> Callable[[], None]:
        import fcntl

        end, agent, prctl = self._child_end, os.getpid(), _prctl()

        def arm() -> None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(end, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
            try:
                lost = os.read(end, 1) == b""
            except BlockingIOError:
                lost = False
            if lost or os.getppid() != agent:  # it ended before anything was armed
                os.kill(os.getpid(), signal.SIGKILL)

        return arm


def adopt_orphans() -> None:
    """Descendants whose parents end become children of this process, not of the system's first one."""
    if _LINUX:
        _prctl()(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl() -> Callable[[int, int], None]:
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).prctl

    def prctl(option: int, value: int) -> None:
        call(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))

    return prctl
