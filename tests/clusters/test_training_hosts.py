"""Training over ssh hosts: a worker that hangs is named, and the job goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from cluster import Hosts
from command import CPU, argv
from processes import environment

from lag import Lag
from shoal.base.run import Run

EXACT = ("strategy.deterministic=true", "strategy.threads=1")


@pytest.mark.slow
def test_a_worker_that_hangs_is_named_and_the_job_goes_on(hosts: Hosts, tmp_path: Path, lag: Lag) -> None:
    words = ("train", "digits", *EXACT, "length=100ep", "save_every=100st", "log_every=10st", "-n", "2", "--hang", "3s")
    words = (*words, "-H", "host1,host2", "--ssh-config", hosts.ssh_config, "--run", tmp_path / "run")
    with open(tmp_path / "said", "w") as said:
        command = argv(hosts, *map(str, words), "--max-restarts", "1")
        process = subprocess.Popen(command, stderr=said, stdout=said, env={**os.environ, **CPU}, start_new_session=True)
    text = (tmp_path / "said").read_text
    try:
        _wait(lambda: _between_saves(Run(tmp_path / "run")), 60, text)
        os.kill(_worker(hosts, "host2"), signal.SIGSTOP)
        began = lag.begin()
        _wait(lambda: "worker 1 on host2 failed first: no progress for 3 s: pid " in text(), 60, text)
        assert time.monotonic() - began < lag.allows(12)
        assert "state T, stopped" in text()
        assert "meanwhile worker 0 on host1 " in text()
        _wait(lambda: "restart 1 of 1" in text(), 60, text)
        _wait(lambda: "Resumed" in text(), 60, text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 75, text()
    finally:
        process.kill()
        process.wait()
    assert not [name for name in hosts.names for pid in hosts.pids(name) if "SHOAL_JOB" in environment(pid)]


def _between_saves(run: Run) -> bool:
    """A worker that saves may take ten times as long, and so may one that waits for that."""
    steps, trained = run.steps_saved(), run.metrics("train")
    return bool(steps and trained) and 30 <= trained[-1]["step"] - steps[-1] <= 60


def _worker(hosts: Hosts, name: str) -> int:
    (pid,) = (pid for pid in hosts.pids(name) if environment(pid).get("SHOAL_ROLE") == "worker")
    return pid


def _wait(true: Any, limit_s: float, text: Any) -> None:
    limit = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < limit, text()
        time.sleep(0.02)
