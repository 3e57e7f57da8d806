"""Jobs on a real Slurm of two nodes: in an allocation, and submitted."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slurm as engine
from cluster import cluster
from cluster import why_not as no_hosts
from command import CPU
from jobs import wait_for
from outcome import what_came
from processes import name, parent
from slurm import Slurm
from struck import GONE_S, SILENCE_S, TRAINING, WORKERS, Struck, cases, note, rest, sleeping

from shoal.base.run import Run


@pytest.fixture(scope="module")
def _slurm() -> Iterator[Slurm]:
    reason = no_hosts() or engine.why_not()
    if reason:
        pytest.skip(reason)
    with cluster(2) as hosts, engine.slurm(hosts) as one:
        yield one


@pytest.fixture
def slurm(_slurm: Slurm) -> Slurm:
    _slurm.mend()
    return _slurm


def allocated(slurm: Slurm, *words: str) -> list[str]:
    return slurm.argv("salloc", "-Q", "-N2", "--immediate=10", *slurm.shoal(*words))


def submitted(slurm: Slurm, *words: str) -> list[str]:
    verb, *rest = words
    return slurm.argv(*slurm.shoal(verb, "--launcher", "slurm:nodes=2", *rest))


def shoal(slurm: Slurm, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        slurm.argv(*slurm.shoal(*map(str, words))),
        capture_output=True,
        text=True,
        env={**os.environ, **CPU},
    )


def worker(job: Struck, slurm: Slurm) -> None:
    os.kill(job.workers()[1], signal.SIGKILL)


def agent(job: Struck, slurm: Slurm) -> None:
    os.kill(job.agent_of(1), signal.SIGKILL)


def srun(job: Struck, slurm: Slurm) -> None:
    pids = [pid for pid in job.tagged() if name(pid) == "srun"]
    os.kill(next(pid for pid in pids if parent(pid) not in pids), signal.SIGKILL)


def host(job: Struck, slurm: Slurm) -> None:
    slurm.hosts.off("host2")


def scancel(job: Struck, slurm: Slurm) -> None:
    slurm.ask("scancel", "--user=root")


CASES = {
    (allocated, worker): ("worker 1 on host2 failed first: killed by SIGKILL", 1),
    (allocated, agent): ("on host2 failed first: the connection to host2 broke", 1),
    (allocated, srun): ("failed first: the connection to host", 1),
    (submitted, host): ("on host2 failed first", 1),
    (submitted, scancel): ("CANCELLED", 130),
}
"""Where a job runs and what is struck: what is said then, and the exit code."""


@pytest.mark.parametrize(("where", "strike"), cases(CASES, {(allocated, worker), (submitted, scancel)}))
def test_nothing_is_left(
    slurm: Slurm,
    tmp_path: Path,
    where: Callable[..., list[str]],
    strike: Callable[[Struck, Slurm], None],
) -> None:
    words = ["--launcher", "slurm"] if where is allocated else []
    with sleeping(lambda *job: where(slurm, *job), tmp_path, *words, **slurm.env) as job:
        strike(job, slurm)
        seconds = job.seconds_until_gone(SILENCE_S + GONE_S if strike is host else GONE_S)
        said, code = CASES[where, strike]
        assert job.end() == code and said in job.said(), job.said()
        note("slurm", where.__name__, strike.__name__, seconds)


@pytest.mark.slow
def test_before_its_time_limit_a_training_saves_and_goes_on_to_the_same_bits(
    slurm: Slurm, tmp_path: Path, undisturbed: object
) -> None:
    run = Run(tmp_path / "a run's $folder")
    words = [
        "digits",
        *TRAINING,
        "-n",
        WORKERS,
        "--launcher",
        "slurm:nodes=2,time=5",
        "--run",
        str(run.folder),
        "--detach",
    ]
    begun = shoal(slurm, "train", *words)
    assert begun.returncode == 0 and "submitted as Slurm job " in begun.stderr, begun.stderr
    number = begun.stderr.partition("job ")[2].partition(";")[0]
    wait_for(run.steps_saved, 60, "nothing was saved")
    slurm.ask("scancel", "--batch", "--signal=USR1", number)  # as --signal=B:USR1 has Slurm do
    said, ended = "", 0
    limit = time.monotonic() + 90
    while ended == 0 and time.monotonic() < limit:
        time.sleep(0.3)
        said = slurm.ask("scontrol", "show", "job", "-o", number)
        ended = "JobState=COMPLETED" in said or -("JobState=FAILED" in said)
    log = "".join(path.read_text() for path in sorted(run.engine_log("x").parent.glob("slurm-*")))
    assert ended == 1 and "Restarts=1" in said, log
    assert "goes back into the queue" in log and "Resumed" in log
    assert what_came(run.folder) == undisturbed
    assert f"Slurm job {number}: COMPLETED" in shoal(slurm, "ps", run.folder).stdout


def test_a_job_that_was_left_alone_is_found_and_stopped(slurm: Slurm, tmp_path: Path) -> None:
    with sleeping(
        lambda *job: submitted(
            slurm,
            *job,
        ),
        tmp_path,
        "--detach",
        waits=False,
        **slurm.env,
    ) as job:
        assert job.end() == 0
        assert "RUNNING" in shoal(slurm, "ps", tmp_path / "run").stdout
        stopped = shoal(slurm, "stop", tmp_path / "run")
        assert stopped.returncode == 0 and "cancelled" in stopped.stdout, stopped
        job.seconds_until_gone()
        assert "CANCELLED" in shoal(slurm, "ps", tmp_path / "run").stdout


def test_what_slurm_refuses_is_told_in_its_own_words(slurm: Slurm, tmp_path: Path) -> None:
    words = ("--launcher", "slurm:partition=gold", "--log-dir", tmp_path / "run", "--", "true")
    done = shoal(slurm, "launch", *words)
    assert done.returncode == 1 and "invalid partition specified: gold" in done.stderr, done.stderr
    crowded = slurm.argv("salloc", "-Q", "-N2", *slurm.shoal("launch", "--launcher", "slurm", "-n", "9", "--", "true"))
    done = subprocess.run(crowded, capture_output=True, text=True, env={**os.environ, **CPU})
    assert done.returncode == 2 and "9 workers for 2 slots" in done.stderr, done.stderr


@rest
def test_a_job_that_waits_is_told_of_and_ctrl_c_cancels_it(slurm: Slurm, tmp_path: Path) -> None:
    words = slurm.shoal("launch", "--launcher", "slurm:nodes=9", "--log-dir", str(tmp_path / "run"), "--", "true")
    with open(tmp_path / "said", "w") as file:
        process = subprocess.Popen(slurm.argv(*words), stderr=file, env={**os.environ, **CPU})
    said = (tmp_path / "said").read_text
    try:
        wait_for(lambda: "waits: PENDING (PartitionConfig)" in said(), 20, "nothing was told", process)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130 and "is cancelled" in said()
    finally:
        process.kill()
        process.wait()
    assert "9" not in slurm.ask("squeue", "-h", "-o", "%D")
