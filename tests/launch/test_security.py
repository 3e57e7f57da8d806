"""What docs/security.md says, held: no secrets where others can read them, no shell, one interface."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shoal
from lag import Lag
from shoal.launch.tagged import tagged

SLEEPER = "import time; print('up', flush=True); time.sleep(60)"
SOURCE = Path(shoal.__file__).parent


def test_no_shell_is_ever_started_here() -> None:
    """Words from people never pass through a shell of this host; ssh's remote command is quoted (test_reach)."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "shell":
                raise AssertionError(f"{path}:{node.value.lineno}: shell=")
            if isinstance(node, ast.Attribute) and node.attr in ("system", "popen", "getoutput", "getstatusoutput"):
                owner = node.value.id if isinstance(node.value, ast.Name) else ""
                assert owner not in ("os", "subprocess"), f"{path}:{node.lineno}: {owner}.{node.attr}"


@pytest.fixture
def running(tmp_path: Path):
    """A job with a variable that is nobody's business; the launcher's process."""
    argv = [sys.executable, "-m", "shoal", "launch", "-n", "2", "--log-dir", str(tmp_path / "run")]
    argv += ["--env", "TOKEN", "--", sys.executable, "-c", SLEEPER]
    env = {**os.environ, "TOKEN": "hunter2-of-the-moon"}
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr and process.stderr.readline() == "up\n"
            yield process
        finally:
            process.terminate()
            process.wait(30)


def pids(folder: Path) -> list[int]:
    return [process.pid for process in tagged() if process.run == str(folder / "run")]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_values_are_in_no_command_line_plan_or_log(running: subprocess.Popen[str], tmp_path: Path) -> None:
    assert len(pids(tmp_path)) >= 4
    for pid in (running.pid, *pids(tmp_path)):
        assert b"hunter2" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) >= 3
    for path in files:
        assert b"hunter2" not in path.read_bytes(), path


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_job_of_one_host_listens_on_the_loopback_only(running: subprocess.Popen[str], tmp_path: Path) -> None:
    inodes = set()
    for pid in (running.pid, *pids(tmp_path)):
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in inodes:
                listening.append(local.partition(":")[0])
    assert listening and set(listening) == {"0100007F"}


def test_a_file_that_others_can_read_is_no_secret(tmp_path: Path, lag: Lag) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(0o640)
    argv = [sys.executable, "-m", "shoal", "launch", "--node-rank", "0", "--num-nodes", "2", "--rendezvous", "a:5"]
    began = lag.begin()
    done = subprocess.run([*argv, "--secret-file", str(secret), "--", "true"], capture_output=True, text=True)
    assert done.returncode == 2 and f"others can read or write it; run: chmod 600 {secret}" in done.stderr
    assert "0123456789" not in done.stderr and time.monotonic() - began < lag.allows(30)
