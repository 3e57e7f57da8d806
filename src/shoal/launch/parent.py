"""Parent: a process that an agent started ends when the agent ends, by whatever cause."""

from __future__ import annotations

import os
import signal
import sys


def die_with_parent() -> None:
    """Linux ends this process when its agent ends, even by SIGKILL. Elsewhere, and without an agent, does nothing."""
    parent = os.environ.get("SHOAL_PARENT_PID")
    if parent is None or not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != int(parent):  # it ended before we asked
        os.kill(os.getpid(), signal.SIGKILL)
