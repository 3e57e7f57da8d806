"""Stopping a job from outside: its launcher is asked, else its workers; then what is left is killed."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shoal.base.run import Run
from shoal.launch.tagged import Tagged, kill_tagged, tagged, tell_tagged

_LOOK_S = 0.1
"""How often to look whether they have ended."""


@dataclass(frozen=True)
class Stopped:
    """What became of one job on this host."""

    job: str
    run: str
    launcher: str
    """`told`, `gone`, or `pid 12 on node1` where it is on another host."""
    ended: int
    """Processes that ended once they were told."""
    killed: int
    survivors: tuple[str, ...]
    """Killed, and still there: they hang in the kernel."""

    def text(self, host: str) -> str:
        what = f"{host}: job {self.job}" + (f" ({self.run})" if self.run else "")
        counts = [f"{self.ended} ended", f"{self.killed} killed" if self.killed else ""]
        lines = [f"{what}: {', '.join(filter(None, counts))}"]
        if self.launcher not in ("told", "gone"):
            lines.append(f"{host}: its launcher, {self.launcher}, may start it again; name that host with -H too")
        lines += [f"{host}: {who} hangs in the kernel and ends when that lets go of it" for who in self.survivors]
        return "\n".join(lines)


def is_of(process: Tagged, run: str) -> bool:
    """Whether it belongs to the run folder, or to the job, that `run` names."""
    return process.job == run or (process.run != "" and os.path.realpath(process.run) == os.path.realpath(run))


def stop_here(run: str | None, grace_s: float) -> list[Stopped]:
    """Stops the jobs of `run` (a folder or a job's id), or all of this user's, on this host.

    They have `grace_s` seconds to save and to leave; the rest is killed.
    """
    own = os.getpid()
    alive = [process for process in tagged() if process.pid != own and (run is None or is_of(process, run))]
    jobs: dict[str, list[Tagged]] = {}
    for process in alive:
        jobs.setdefault(process.job, []).append(process)
    folder = run if run is not None and Path(run).is_dir() else ""
    if folder and not jobs:
        jobs[""] = []  # nothing of it runs here but, maybe, its launcher
    until = time.monotonic() + grace_s
    launchers = {job: _launcher_of(_run_of(processes) or folder) for job, processes in jobs.items()}
    for job, processes in jobs.items():
        launcher = launchers[job]
        if not (launcher and launcher.tell(signal.SIGTERM)):
            for worker in processes:
                if worker.role == "worker":
                    tell_tagged(worker, signal.SIGTERM)
    stopped = [
        _see_out(job, processes, launchers[job], until, _run_of(processes) or folder) for job, processes in jobs.items()
    ]
    return [one for one in stopped if one.job or one.launcher != "gone"]


def _see_out(job: str, processes: list[Tagged], launcher: _Launcher | None, until: float, run: str) -> Stopped:
    """Waits until the job has ended, and ends it at `until`."""
    while time.monotonic() < until and (_alive(job) or (launcher and launcher.alive)):
        time.sleep(_LOOK_S)
    here = launcher is not None and launcher.is_here
    # The launcher first, for it might start again what is killed now.
    defied = here and launcher is not None and launcher.alive and launcher.tell(signal.SIGKILL)
    left = _alive(job)
    survivors = kill_tagged(job) if job else []
    told = "told" if here else f"pid {launcher.pid} on {launcher.host}" if launcher and launcher.alive else "gone"
    ended = len([process for process in processes if process.pid not in {other.pid for other in left}])
    return Stopped(
        job=job,
        run=run,
        launcher=told,
        ended=ended + (here and not defied),
        killed=len(left) - len(survivors) + defied,
        survivors=tuple(f"pid {process.pid} ({process.name or process.command[:40]})" for process in survivors),
    )


def _alive(job: str) -> list[Tagged]:
    return [process for process in tagged(job) if process.pid != os.getpid()] if job else []


def _run_of(processes: Iterable[Tagged]) -> str:
    return next((process.run for process in processes if process.run), "")


@dataclass(frozen=True)
class _Launcher:
    """The process that holds the run folder."""

    run: Run
    pid: int
    host: str

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        return self.run.claimed_by() == (self.pid, self.host)

    def tell(self, signum: int) -> bool:
        """Sends a signal to this very process; whether it was there. Its number may have gone to a stranger: held by a
        pidfd, it must have the run's lock open."""
        if not self.is_here:
            return False
        try:
            handle = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            return False
        try:
            if not self._has_lock_open():
                return False
            signal.pidfd_send_signal(handle, signum)
            return True
        except OSError:
            return False
        finally:
            os.close(handle)

    def _has_lock_open(self) -> bool:
        lock = os.path.realpath(self.run.lock)
        folder = f"/proc/{self.pid}/fd"
        return any(os.path.realpath(f"{folder}/{name}") == lock for name in os.listdir(folder))


def _launcher_of(run: str) -> _Launcher | None:
    owner = Run(Path(run)).claimed_by() if run else None
    return _Launcher(Run(Path(run)), *owner) if owner else None
