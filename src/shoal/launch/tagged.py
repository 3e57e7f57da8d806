"""Tagged: the processes of a job on this host, found by the job's tag in their environment, whoever started them.

A process's environment in /proc is the one it was started with: children inherit the tag, whether they called setsid,
were orphaned, or changed their names. Those of other users cannot be read (but by root), and are left alone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass

TAG = "SHOAL_JOB"
_ROUND_S = 0.01
"""How long to wait for killed processes before looking again."""
_LOOKS = 20
"""At most so many times what was born meanwhile is looked at too."""
_LONGEST = 1 << 21
"""Bytes of an environment that are read; the kernel's own limit."""


@dataclass(frozen=True)
class Tagged:
    """A process that carries a job's tag."""

    pid: int
    job: str
    role: str
    """Empty for what is neither worker nor server, such as an agent."""
    rank: int | None
    run: str
    """The run folder, absolute; empty where not said."""
    state: str
    """One letter as in /proc: R running, S asleep, D in the kernel, T stopped …"""
    command: str
    """The command line, for people."""
    started_s: float
    """Seconds since it was started."""

    @property
    def name(self) -> str:
        return self.role if self.rank is None else f"{self.role} {self.rank}"


def tagged(job: str | None = None) -> list[Tagged]:
    """Processes that carry the tag of `job`, or, of this user's, that of any job; the dead (zombies) are left out."""
    found: list[Tagged] = []
    seen: set[int] = set()
    for _ in range(_LOOKS):
        # A chain of short-lived processes could be through with all that were listed before they are read.
        fresh = [pid for pid in _pids(None if job else os.getuid()) if pid not in seen]
        if not fresh:
            break
        seen.update(fresh)
        found += [process for pid in fresh if (process := _read(pid, job)) is not None]
    return found


def kill_tagged(job: str, spare: Collection[int] = frozenset(), limit_s: float = 5.0) -> list[Tagged]:
    """Kills every process of `job` but this one and those in `spare`; what is still there after `limit_s` seconds.

    Looks again until a look finds nobody, for the killed may have started others meanwhile. Survivors hang in the
    kernel (state D): they end as soon as it lets them, and nobody can hasten that.
    """
    spared = {*spare, os.getpid()}
    limit = time.monotonic() + limit_s
    while True:
        left = [process for process in tagged(job) if process.pid not in spared]
        for process in left:
            _tell(process.pid, job, signal.SIGKILL)
        if not left or time.monotonic() >= limit:
            return left
        _pursue(left[-1].pid, job, spared, limit)
        time.sleep(_ROUND_S)


def _pursue(pid: int, job: str, spared: Collection[int], limit: float) -> None:
    """Kills those of `job` that were born after `pid`, in the order of their births.

    A child is in /proc before its parent can be killed, under a higher number, and to kill is faster than to fork: so
    even a chain of processes, each of which starts the next at once, is overtaken. (Where numbers began anew from
    below, the next look goes on.)
    """
    while pid < (newest := _newest()) and time.monotonic() < limit:
        for later in range(pid + 1, newest + 1):
            if later not in spared:
                _tell(later, job, signal.SIGKILL)
        pid = newest


def _newest() -> int:
    """The process id that was given last, 0 where nobody says."""
    try:
        with open("/proc/loadavg", "rb") as file:
            return int(file.read().split()[4])
    except (OSError, ValueError, IndexError):
        return 0


def tell_tagged(process: Tagged, signum: int) -> bool:
    """Sends a signal to this very process, or to nobody; whether it was there.

    The number may have gone to a stranger since it was read: held by a pidfd, its tag is looked at once more first.
    """
    return _tell(process.pid, process.job, signum)


def _tell(pid: int, job: str, signum: int) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return False
    try:
        if _environment(pid).get(TAG) != job or not _is_here(pid):
            return False
        signal.pidfd_send_signal(handle, signum)
        return True
    except OSError:
        return False  # it ended in between, or is another user's
    finally:
        os.close(handle)


def _pids(uid: int | None) -> list[int]:
    """Of all processes, or of one user's."""
    if not sys.platform.startswith("linux"):
        return []
    pids = []
    with os.scandir("/proc") as entries:
        for entry in entries:
            try:
                if entry.name.isdigit() and (uid is None or entry.stat().st_uid == uid):
                    pids.append(int(entry.name))
            except OSError:
                continue  # it ended in between
    return sorted(pids)


def _read(pid: int, job: str | None) -> Tagged | None:
    env = _environment(pid)
    tag = env.get(TAG)
    if not tag or (job is not None and tag != job):
        return None
    try:
        if not _is_here(pid):
            return None
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *fields = file.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read(4096).replace(b"\0", b" ").decode(errors="replace").strip()
        with open("/proc/uptime", "rb") as file:
            uptime = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    if state in (b"Z", b"X"):
        return None
    rank = env.get("SHOAL_RANK", "")
    return Tagged(
        pid=pid,
        job=tag,
        role=env.get("SHOAL_ROLE", ""),
        rank=int(rank) if rank.isascii() and rank.isdigit() else None,
        run=env.get("SHOAL_RUN", ""),
        state=state.decode(),
        command=command,
        started_s=max(0.0, uptime - int(fields[18]) / os.sysconf("SC_CLK_TCK")),
    )


def _is_here(pid: int) -> bool:
    """Not in a container, which is a host of its own. OSError where it may not be looked at."""
    return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")


def _environment(pid: int) -> dict[str, str]:
    """Shoal's own variables of a process; none where it ended or is not ours to look at."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read(_LONGEST)
    except OSError:
        return {}
    if b"SHOAL_" not in data:
        return {}
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if entry.startswith(b"SHOAL_"))
    return {os.fsdecode(key): value.decode(errors="replace") for key, _, value in reversed(list(pairs))}
