"""Out of memory: whether the kernel killed a process for want of memory, as far as it lets us see."""

from __future__ import annotations

import os
import time
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_RECENT_S = 60
"""Process numbers come round again."""


class OutOfMemory:
    """Counts the kernel's OOM kills in this process's control group, from now on."""

    def __init__(self) -> None:
        self._files = [path for path in _counters() if path.is_file()]
        self._seen = self._count()

    def cause(self, pid: int | None) -> str | None:
        """What to say of process `pid`, which SIGKILL ended and nobody here sent it; None: not for want of memory."""
        count, before = self._count(), self._seen
        self._seen = count
        if count > before:
            return "the kernel's OOM killer: the host, or the job's memory limit, had no memory left"
        if pid is not None and _in_kernel_log(pid):
            return "the kernel's OOM killer: the host had no memory left"
        return None

    def _count(self) -> int:
        return sum(_oom_kills(path) for path in self._files)


def _counters() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if not controllers:
            found += [root / inside / "memory.events" for root in (_CGROUPS, _CGROUPS / "unified")]
        elif "memory" in controllers.split(","):
            found.append(_CGROUPS / "memory" / inside / "memory.oom_control")
    return found


def _oom_kills(path: Path) -> int:
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == "oom_kill")
    except (OSError, ValueError):
        return 0


def _in_kernel_log(pid: int) -> bool:
    """Only the administrator may read it on most systems."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    sign = f"Killed process {pid} ".encode()
    try:
        while True:
            try:
                said = os.read(log, 8192)
                if sign in said and time.monotonic() - int(said.split(b",")[2]) / 1e6 < _RECENT_S:
                    return True
            except BlockingIOError:
                return False
            except BrokenPipeError:
                continue  # old messages were overwritten meanwhile
    except (OSError, ValueError, IndexError):
        return False
    finally:
        os.close(log)
