"""Jobs on a real Ray cluster of two nodes. Skipped where ray is not installed: it is no dependency of Shoal's."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray_cluster as engine
from cluster import cluster
from cluster import why_not as no_hosts
from command import CPU
from outcome import what_came
from processes import children, command
from ray_cluster import RayCluster
from struck import GONE_S, SILENCE_S, TRAINING, WORKERS, Struck, cases, note, sleeping

WORDS = ("--launcher", "ray:nodes=2")


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    reason = no_hosts() or engine.why_not()
    if reason:
        pytest.skip(reason)
    with cluster(2) as hosts, engine.ray_cluster(hosts) as one:
        yield one


def worker(job: Struck, ray: RayCluster) -> None:
    os.kill(job.workers()[1], signal.SIGKILL)


def agent(job: Struck, ray: RayCluster) -> None:
    os.kill(job.agent_of(1), signal.SIGKILL)


def driver(job: Struck, ray: RayCluster) -> None:
    (pid,) = (pid for pid in children(job.process.pid) if "shoal.launch.spread" in command(pid))
    os.kill(pid, signal.SIGKILL)


def launcher(job: Struck, ray: RayCluster) -> None:
    job.process.kill()


def host(job: Struck, ray: RayCluster) -> None:
    ray.hosts.off("host2")


CASES = {
    worker: ("worker 1 on node-1 failed first: killed by SIGKILL", {1}),
    agent: ("on node-1 failed first: the connection to node-1 broke", {1}),
    driver: ("", {1, 75}),
    launcher: ("", {-9}),
    host: ("failed first", {1}),
}
"""What is struck, the host last: what is said then, and the exit codes that may be."""


@pytest.mark.slow
def test_the_bits_of_a_local_training(ray: RayCluster, tmp_path: Path, undisturbed: object) -> None:
    words = ray.argv("train", "digits", *TRAINING, "-n", WORKERS, *WORDS, "--run", str(tmp_path / "run"))
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **CPU})
    assert done.returncode == 0, done.stderr
    assert what_came(tmp_path / "run") == undisturbed
    assert "top-1" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("strike", cases(CASES, {worker}))
def test_nothing_is_left(ray: RayCluster, tmp_path: Path, strike: Callable[[Struck, RayCluster], None]) -> None:
    with sleeping(ray.argv, tmp_path, *WORDS) as job:
        strike(job, ray)
        seconds = job.seconds_until_gone(SILENCE_S + GONE_S if strike is host else GONE_S)
        said, codes = CASES[strike]
        assert job.end() in codes and said in job.said(), job.said()
        note("ray", "cluster", strike.__name__, seconds)
