"""Whoever is killed, stopped or told to end: nothing of the job is left in the promised time, and bystanders live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shoal
from shoal.launch.tagged import Tagged, tagged

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="leashes and sweeps are Linux's")

SOURCE = str(Path(shoal.__file__).parents[1])
SILENCE_S = 3
CLOSED_S, SILENT_S = 5.0, SILENCE_S + 5.0
NASTY = """
import ctypes, os, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["setsid", "-f", sys.executable, "-c", "import time; time.sleep(1000)"], close_fds=False).wait()
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        for fd in range(3, 100):
            try: os.close(fd)
            except OSError: pass
        time.sleep(1000)
    os._exit(0)
open(os.environ["READY"] + os.environ["RANK"], "w").close()
if os.environ["RANK"] == "1":
    ctypes.PyDLL(None).sleep(1000)  # holds Python's lock
time.sleep(1000)
"""
"""Ignores all that asks nicely, and has children, grandchildren and orphans in sessions of their own."""

PROCESSES = 10
"""Two guardians, and of each worker: itself, two children and a grandchild that escaped."""


class Job:
    """A job of two nasty workers, its launcher and its guardians."""

    def __init__(self, folder: Path) -> None:
        self.tag = uuid.uuid4().hex
        ready = folder / "ready"
        argv = ["launch", "-n", "2", "--silence", str(SILENCE_S), "--log-dir", str(folder / "run")]
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", "shoal", *argv, "--env", f"READY={ready}", "--", sys.executable, "-c", NASTY],
            env={**os.environ, "PYTHONPATH": SOURCE, "BYSTANDER": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(folder / "err").open("w"),
            start_new_session=True,
        )
        self.err = folder / "err"
        wait_for(lambda: all(Path(f"{ready}{rank}").exists() for rank in (0, 1)), 30)
        run = str(folder / "run")
        wait_for(lambda: sum(process.run == run for process in tagged()) >= PROCESSES, 10)
        (self.id,) = {process.job for process in tagged() if process.run == run}

    def of(self, who: str) -> int:
        """The process id of the launcher, warden, agent, worker 1 or a child of it."""
        if who == "launcher":
            return self.launcher.pid
        left = tagged(self.id)
        guardians = [process.pid for process in left if "shoal agent" in process.command]
        if who in ("warden", "agent"):
            (agent,) = (pid for pid in guardians if parent(pid) in guardians)
            return agent if who == "agent" else parent(agent)
        worker = min(process.pid for process in left if process.rank == 1 and parent(process.pid) in guardians)
        if who == "worker":
            return worker
        return next(process.pid for process in left if parent(process.pid) == worker)

    def left(self) -> list[Tagged]:
        return tagged(self.id)

    def ends(self, limit_s: float) -> None:
        """AssertionError where something is left after so many seconds."""
        limit = time.monotonic() + limit_s
        while left := self.left():
            assert time.monotonic() < limit, left
            time.sleep(0.01)

    def kill(self) -> None:
        for pid in [self.launcher.pid, *(process.pid for process in self.left())]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.launcher.wait()


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def wait_for(true: Callable[[], bool], limit_s: float) -> None:
    limit = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.kill()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process like those of the job, in nobody's charge."""
    env = {**os.environ, "SHOAL_JOB": "f" * 16}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", "shoal", "agent"], env=env)
    yield process
    alive = process.poll() is None
    process.kill()
    process.wait()
    assert alive, "a bystander was hit"


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("who", ["launcher", "agent", "warden", "worker"])
def test_nothing_is_left(who: str, job: Job) -> None:
    os.kill(job.of(who), signal.SIGKILL)
    if who != "launcher":
        assert job.launcher.wait(CLOSED_S + 3) == 1
    job.ends(CLOSED_S)


@pytest.mark.usefixtures("bystander")
def test_whoever_is_stopped_counts_as_lost_after_the_silence(tmp_path: Path) -> None:
    """Three jobs at once, for it is the same silence that all of them wait for."""
    jobs: dict[str, Job] = {}
    try:
        for who in ("launcher", "agent", "warden"):
            (tmp_path / who).mkdir()
            jobs[who] = Job(tmp_path / who)
        for who, job in jobs.items():
            os.kill(job.of(who), signal.SIGSTOP)
        for who, job in jobs.items():
            if who != "launcher":
                assert job.launcher.wait(SILENT_S + 3) == 1
            job.ends(SILENT_S)
    finally:
        for job in jobs.values():
            job.kill()


def test_children_of_a_worker_are_its_own_affair(job: Job) -> None:
    os.kill(job.of("a child"), signal.SIGKILL)
    time.sleep(0.3)
    assert job.launcher.poll() is None
    assert len(job.left()) >= PROCESSES - 1


@pytest.mark.parametrize("who", ["launcher", "agent", "warden"])
def test_told_to_end_all_are_told_and_the_deaf_are_killed_the_second_time(who: str, job: Job) -> None:
    os.kill(job.of(who), signal.SIGTERM)
    wait_for(lambda: "SIGTERM: passed on to 2 workers" in job.err.read_text(), 5)
    assert len(job.left()) >= PROCESSES
    job.launcher.send_signal(signal.SIGINT)
    wait_for(lambda: "SIGINT: passed on to 2 workers" in job.err.read_text(), 5)
    job.launcher.send_signal(signal.SIGINT)
    assert job.launcher.wait(8) == 130
    assert job.left() == []


@pytest.mark.usefixtures("bystander")
def test_launcher_and_agent_stopped_and_killed_at_once(job: Job) -> None:
    """A stopped agent cannot heed the link's end: the warden does."""
    os.kill(job.of("agent"), signal.SIGSTOP)
    os.kill(job.launcher.pid, signal.SIGKILL)
    job.ends(CLOSED_S)


def test_both_guardians_killed_at_once_leave_it_to_the_launcher(job: Job) -> None:
    pids = [job.of("agent"), job.of("warden")]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert job.launcher.wait(8) == 1
    assert job.left() == []
