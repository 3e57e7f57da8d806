"""A process that hangs in the kernel (state D) is told, and not waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import SOURCE, wait_for

from lag import Lag
from shoal.launch.tagged import tagged
from shoal.launch.warden import STUCK_S, UNKILLABLE_S

FREEZER = Path("/sys/fs/cgroup/freezer")
"""That of cgroup v1: what it froze stays in state D whatever is sent to it, like one that waits for a dead disk."""


@pytest.fixture
def freezer() -> Iterator[Path]:
    group = FREEZER / f"test-frozen-{os.getpid()}"
    try:
        group.mkdir()
        (group / "freezer.state").write_text("THAWED")
    except OSError:
        pytest.skip("no freezer of cgroup v1 here, and no other way to make a process that cannot be killed")
    yield group
    (group / "freezer.state").write_text("THAWED")
    wait_for(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


def test_it_is_told_and_not_waited_for(freezer: Path, tmp_path: Path, lag: Lag) -> None:
    script = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    argv = [sys.executable, "-m", "shoal", "launch", "--grace", "0s", "--log-dir", str(tmp_path / "run"), "--"]
    job = subprocess.Popen(
        [*argv, sys.executable, "-c", script],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    (freezer / "cgroup.procs").write_text(str(pid))
    (freezer / "freezer.state").write_text("FROZEN")
    wait_for(lambda: (freezer / "freezer.state").read_text().strip() == "FROZEN")
    job.send_signal(signal.SIGTERM)
    began = lag.begin()
    _, said = job.communicate(timeout=400)
    assert UNKILLABLE_S < time.monotonic() - began < lag.allows(UNKILLABLE_S + 5 * STUCK_S + 2)
    assert job.returncode == 75
    assert f"localhost: process {pid} (python" in said and "state D) does not end: it hangs in the kernel" in said
    assert "killed by the agent, for it did not end when it was told to: worker 0" in said
    (freezer / "freezer.state").write_text("THAWED")
    wait_for(lambda: pid not in {process.pid for process in tagged()})
