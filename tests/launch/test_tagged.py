"""Processes found by the tag in their environment, and killed without hitting anybody else."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shoal.launch.tagged import Tagged, kill_tagged, tagged, tell_tagged

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

SLEEPER = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
DAEMON = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        signal.pause()
    os._exit(0)
os.wait()
"""
BREEDER = """
import os, time
print("up", flush=True)
while True:  # every child starts the next one, so that one look is never enough
    if os.fork():
        time.sleep(0.03)
        os._exit(0)
"""


@pytest.fixture
def job() -> Iterator[str]:
    name = secrets.token_hex(8)
    yield name
    kill_tagged(name)


@contextmanager
def started(job: str | None, code: str = SLEEPER, **env: str) -> Iterator[subprocess.Popen[str]]:
    tag = {"SHOAL_JOB": job} if job else {}
    env = {**os.environ, **tag, **env}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def gone(pid: int, limit_s: float = 5.0) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], limit_s)[0])
    finally:
        os.close(handle)


def test_what_is_said_of_a_process(job: str) -> None:
    with started(job, SHOAL_ROLE="worker", SHOAL_RANK="3", SHOAL_RUN="/runs/x") as process:
        (found,) = tagged(job)
        assert found.pid in [other.pid for other in tagged()]
    assert (found.pid, found.job, found.role, found.rank, found.run) == (process.pid, job, "worker", 3, "/runs/x")
    assert found.name == "worker 3" and found.state in "RS" and "signal.pause" in found.command
    assert 0 <= found.started_s < 60
    assert tagged(job) == []


def test_the_dead_are_left_out(job: str) -> None:
    with started(job) as process:
        process.kill()
        assert gone(process.pid)
        assert tagged(job) == []  # a zombie: nobody has waited for it yet


def test_only_the_job_is_killed(job: str) -> None:
    with started(job) as mine, started(job + "0") as longer, started(None) as bystander:
        assert kill_tagged(job) == []
        assert mine.wait(5) == -signal.SIGKILL
        assert longer.poll() is None and bystander.poll() is None


def test_the_stopped_and_the_escaped_are_killed(job: str) -> None:
    with started(job) as stopped:
        stopped.send_signal(signal.SIGSTOP)
        with started(job, DAEMON) as forker:
            assert forker.wait(10) == 0
            (daemon,) = [process.pid for process in tagged(job) if process.pid != stopped.pid]
            assert kill_tagged(job) == []
            assert stopped.wait(5) == -signal.SIGKILL
            assert gone(daemon)


def test_those_born_meanwhile_are_killed(job: str) -> None:
    with started(job, BREEDER):
        assert kill_tagged(job) == []
        assert tagged(job) == []


def test_the_spared_live(job: str) -> None:
    with started(job) as mine, started(job) as spared:
        assert kill_tagged(job, spare={spared.pid}, limit_s=5) == []
        assert mine.wait(5) == -signal.SIGKILL and spared.poll() is None


def test_a_number_that_went_to_a_stranger_is_not_signalled(job: str) -> None:
    with started(None) as stranger:
        stale = Tagged(stranger.pid, job, "worker", 0, "", "S", "", 0.0)
        assert not tell_tagged(stale, signal.SIGKILL)
        assert stranger.poll() is None
    assert not tell_tagged(stale, signal.SIGKILL)  # and one that is nobody's any more


def test_a_tag_must_be_the_whole_variable(job: str) -> None:
    with started(None, XSHOAL_JOB=job, OTHER=f"SHOAL_JOB={job}") as bystander:
        assert kill_tagged(job) == []
        assert bystander.poll() is None
