"""Jobs that a real mpirun starts on two hosts: the bits of a local one, and nothing left whatever is struck."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Hosts
from command import argv, shoal
from outcome import what_came
from processes import children, family, name
from struck import GONE_S, SILENCE_S, TRAINING, WORKERS, Struck, cases, note, rest, sleeping

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def open_mpi(hosts: Hosts) -> list[str]:
    if shutil.which("mpirun.openmpi") is None:
        pytest.skip("no mpirun.openmpi here (Debian: apt-get install openmpi-bin)")
    return ["--launcher", "mpi:program=mpirun.openmpi", "--ssh-config", str(hosts.ssh_config), "-H", "host1,host2"]


def mpich(hosts: Hosts) -> list[str]:
    if shutil.which("mpirun.mpich") is None:
        pytest.skip("no mpirun.mpich here (Debian: apt-get install mpich)")
    ssh = hosts.folder / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec ssh -F {hosts.ssh_config} "$@"\n')
    ssh.chmod(0o700)
    more = ["--launcher-arg=-launcher-exec", f"--launcher-arg={ssh}", "-H", "host1,host2"]
    return ["--launcher", "mpi:program=mpirun.mpich", *more]


@pytest.fixture(params=[open_mpi, pytest.param(mpich, marks=rest)])
def words(request: pytest.FixtureRequest, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for key, value in AS_ROOT.items():
        monkeypatch.setenv(key, value)
    return request.param(hosts)


def worker(job: Struck, hosts: Hosts) -> None:
    os.kill(job.workers()[1], signal.SIGKILL)


def agent(job: Struck, hosts: Hosts) -> None:
    os.kill(job.agent_of(1), signal.SIGKILL)


def mpirun(job: Struck, hosts: Hosts) -> None:
    (pid,) = (pid for pid in children(job.process.pid) if name(pid).startswith("mpi") or name(pid) == "orterun")
    os.kill(pid, signal.SIGKILL)


def launcher(job: Struck, hosts: Hosts) -> None:
    job.process.kill()


def told(job: Struck, hosts: Hosts) -> None:
    job.process.send_signal(signal.SIGTERM)


def host(job: Struck, hosts: Hosts) -> None:
    hosts.off("host2")


CASES = {
    worker: ("worker 1 on host2 failed first: killed by SIGKILL", {1}),
    agent: ("worker 1 on host2 failed first: the connection to host2 broke", {1}),
    mpirun: ("", {1, 75}),  # Open MPI has its agents told to stop, MPICH ends them
    launcher: ("", {-9}),
    told: ("SIGTERM: passed on to 2 workers", {75}),
    host: ("failed first: the connection to host", {1}),
}
"""What is struck: what is said then, and the exit codes that may be."""


@pytest.mark.parametrize("strike", cases(CASES, {worker, mpirun}))
def test_nothing_is_left(
    hosts: Hosts, words: list[str], tmp_path: Path, strike: Callable[[Struck, Hosts], None]
) -> None:
    with sleeping(lambda *job: argv(hosts, *job), tmp_path, *words) as job:
        below = family(job.process.pid)[1:]
        strike(job, hosts)
        seconds = job.seconds_until_gone(SILENCE_S + GONE_S if strike is host else GONE_S)
        job.seconds_until_gone(GONE_S, below)
        said, codes = CASES[strike]
        assert job.end() in codes and said in job.said(), job.said()
        note("mpi", words[1].partition("=")[2], strike.__name__, seconds)


@pytest.mark.slow
def test_the_bits_of_a_local_training(hosts: Hosts, words: list[str], tmp_path: Path, undisturbed: object) -> None:
    done = shoal(hosts, "train", "digits", *TRAINING, "-n", WORKERS, *words, "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert what_came(tmp_path / "run") == undisturbed
    assert "top-1" in done.stdout
