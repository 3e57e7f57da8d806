"""Jobs that a real Grid Engine runs on two hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sge as engine
from cluster import cluster
from cluster import why_not as no_hosts
from command import CPU
from jobs import wait_for
from outcome import what_came
from processes import command, environment, everybody
from sge import Sge
from struck import GONE_S, SILENCE_S, TRAINING, WORKERS, Struck, cases, note, rest, sleeping

from shoal.base.run import Run

WORDS = ("--launcher", "sge:pe=shoal")


@pytest.fixture(scope="module")
def _sge() -> Iterator[Sge]:
    reason = no_hosts() or engine.why_not()
    if reason:
        pytest.skip(reason)
    with cluster(2) as hosts, engine.sge(hosts) as one:
        yield one


@pytest.fixture
def sge(_sge: Sge) -> Sge:
    _sge.mend()
    return _sge


def shoal(sge: Sge, *words: str | Path) -> subprocess.CompletedProcess[str]:
    argv = sge.argv(*sge.shoal(*map(str, words)))
    return subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **CPU})


def worker(job: Struck, sge: Sge) -> None:
    os.kill(job.workers()[1], signal.SIGKILL)


def agent(job: Struck, sge: Sge) -> None:
    os.kill(job.agent_of(1), signal.SIGKILL)


def qdel(job: Struck, sge: Sge) -> None:
    sge.ask("qdel", "-u", "*")


def host(job: Struck, sge: Sge) -> None:
    other = environment(job.workers()[1])["SHOAL_NODE"]
    assert other == "1"
    wait_for(lambda: "workers meet at" in job.said(), 10, "what the job says has not come")  # it names the other's
    sge.hosts.off("host1" if "eth0 of host2" in job.said() else "host2")


CASES = {
    worker: ("failed first: killed by SIGKILL", {1}),
    agent: ("failed first: the connection to host", {1}),
    qdel: ("", {1, 130, 137}),
    host: ("failed first", {1}),
}
"""What is struck: what is said then, and the exit codes that may be."""


@pytest.mark.parametrize("strike", cases(CASES, {worker}))
def test_nothing_is_left(sge: Sge, tmp_path: Path, strike: Callable[[Struck, Sge], None]) -> None:
    with sleeping(lambda *job: sge.argv(*sge.shoal(*job)), tmp_path, *WORDS) as job:
        strike(job, sge)
        seconds = job.seconds_until_gone(SILENCE_S + GONE_S if strike is host else GONE_S)
        said, codes = CASES[strike]
        assert job.end(60) in codes and said in job.said(), job.said()
        note("sge", "submitted", strike.__name__, seconds)


@rest
@pytest.mark.slow
def test_before_its_time_limit_a_training_saves_and_goes_on_to_the_same_bits(
    sge: Sge, tmp_path: Path, undisturbed: object
) -> None:
    run = Run(tmp_path / "a run's $folder")
    words = ["digits", *TRAINING, "-n", WORKERS, *WORDS, "--run", str(run.folder), "--detach"]
    begun = shoal(sge, "train", *words)
    assert begun.returncode == 0 and "submitted as Grid Engine job " in begun.stderr, begun.stderr
    wait_for(run.steps_saved, 60, "nothing was saved")
    launcher = [pid for pid in everybody() if "-m shoal train" in command(pid) and str(run.folder) in command(pid)]
    os.kill(launcher[0], signal.SIGUSR1)  # as the soft limit s_rt has Grid Engine do
    limit = time.monotonic() + 90
    while "finished" not in (told := shoal(sge, "ps", run.folder).stdout):
        log = "".join(path.read_text() for path in sorted(run.engine_log("x").parent.glob("sge-*")))
        assert time.monotonic() < limit, told + log
        time.sleep(0.5)
    log = "".join(path.read_text() for path in sorted(run.engine_log("x").parent.glob("sge-*")))
    assert "goes back into Grid Engine's queue" in log and "Resumed" in log
    assert what_came(run.folder) == undisturbed


@rest
def test_a_job_that_was_left_alone_is_found_and_stopped(sge: Sge, tmp_path: Path) -> None:
    with sleeping(lambda *job: sge.argv(*sge.shoal(*job)), tmp_path, *WORDS, "--detach", waits=False) as job:
        assert job.end() == 0
        assert "(runs)" in shoal(sge, "ps", tmp_path / "run").stdout
        stopped = shoal(sge, "stop", tmp_path / "run")
        assert stopped.returncode == 0 and "cancelled" in stopped.stdout, stopped
        job.seconds_until_gone()


def test_what_cannot_be_is_told(sge: Sge, tmp_path: Path) -> None:
    job = ("-n", "2", "--log-dir", tmp_path / "run", "--", "true")
    done = shoal(sge, "launch", "--launcher", "sge", *job)
    assert done.returncode == 2 and "qconf -spl" in done.stderr, done.stderr
    done = shoal(sge, "launch", "--launcher", "sge:pe=gold", *job)
    assert done.returncode == 1 and 'parallel environment "gold" does not exist' in done.stderr, done.stderr
    done = shoal(sge, "launch", "--launcher", "sge:pe=shoal,queue=gold", *job)
    assert done.returncode == 1 and '"gold"' in done.stderr, done.stderr
