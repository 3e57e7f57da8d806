"""`shoal ps` and `shoal stop` on this host: jobs with a launcher, without one, and such as do not want to end."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.base.errors import UsageError
from shoal.base.run import Run
from shoal.cli import shoal
from shoal.launch.tagged import kill_tagged, tagged

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

WILLING = "import signal; print('up', flush=True); signal.pause()"
DEAF = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"
)
LAUNCHER = """
import os, signal, subprocess, sys
from pathlib import Path
from shoal.base.run import Run
lock = Run(Path(sys.argv[1])).claim()
child = subprocess.Popen([sys.executable, "-c", sys.argv[3]], env={**os.environ, "SHOAL_JOB": sys.argv[2],
                         "SHOAL_RUN": sys.argv[1], "SHOAL_ROLE": "worker", "SHOAL_RANK": "0"})
def told(number, frame):
    child.terminate()
    child.wait()
    print("stopped in good order", flush=True)
    os._exit(75)
signal.signal(signal.SIGTERM, told)
while True:
    signal.pause()
"""


class Jobs:
    """Processes that look like a job's."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.id, self.run, self._stack = secrets.token_hex(8), folder / "run", stack
        self.run.mkdir()

    def worker(self, rank: int, code: str = WILLING, role: str = "worker") -> subprocess.Popen[str]:
        env = {"SHOAL_JOB": self.id, "SHOAL_RUN": str(self.run), "SHOAL_ROLE": role, "SHOAL_RANK": str(rank)}
        return self._start([sys.executable, "-c", code], env)

    def launcher(self, code: str = WILLING) -> subprocess.Popen[str]:
        return self._start([sys.executable, "-c", LAUNCHER, str(self.run), self.id, code], {})

    def _start(self, argv: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(argv, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        assert process.stdout and process.stdout.readline() == "up\n"
        return process


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with ExitStack() as stack:
        jobs = Jobs(tmp_path, stack)
        stack.callback(kill_tagged, jobs.id)
        yield jobs


def run(*words: str) -> Result:
    return CliRunner().invoke(shoal, words, catch_exceptions=False, standalone_mode=False)


def test_ps_shows_who_where_and_since_when(jobs: Jobs) -> None:
    process = jobs.worker(1)
    head, *rows = run("ps").stdout.splitlines()
    assert head.split() == ["JOB", "HOST", "WHO", "PID", "STATE", "AGE", "RUN"]
    (row,) = [row.split() for row in rows if jobs.id in row]
    assert row[:6] == [jobs.id, "localhost", "worker", "1", str(process.pid), "S"] and row[-1] == str(jobs.run)
    said = [json.loads(line) for line in run("ps", "--json").stdout.splitlines()]
    assert [(one["pid"], one["host"]) for one in said if one["job"] == jobs.id] == [(process.pid, "localhost")]


def test_a_job_whose_launcher_is_gone(jobs: Jobs) -> None:
    workers = [jobs.worker(rank) for rank in range(2)]
    bystander = subprocess.Popen([sys.executable, "-c", DEAF])
    try:
        result = run("stop", str(jobs.run))
        assert result.stdout == f"localhost: job {jobs.id} ({jobs.run}): 2 ended\n"
        assert not result.return_value
        assert [worker.wait(5) for worker in workers] == [-signal.SIGTERM] * 2
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    assert run("stop", str(jobs.run)).stdout == f"nothing of {jobs.run} is alive on localhost\n"


def test_those_that_do_not_want_are_killed(jobs: Jobs) -> None:
    deaf, server = jobs.worker(0, DEAF), jobs.worker(0, role="server")
    result = run("stop", jobs.id, "--grace", "0.3")
    assert result.stdout == f"localhost: job {jobs.id} ({jobs.run}): 0 ended, 2 killed\n"
    assert (deaf.wait(5), server.wait(5)) == (-signal.SIGKILL, -signal.SIGKILL)


def test_the_launcher_is_asked_first(jobs: Jobs) -> None:
    launcher = jobs.launcher()
    assert Run(jobs.run).claimed_by() is not None
    result = run("stop", os.path.relpath(jobs.run))
    assert result.stdout == f"localhost: job {jobs.id} ({jobs.run}): 2 ended\n"
    assert launcher.wait(5) == 75 and launcher.stdout and launcher.stdout.read() == "stopped in good order\n"
    assert Run(jobs.run).claimed_by() is None


def test_a_launcher_that_cannot_stop_is_killed_with_its_job(jobs: Jobs) -> None:
    launcher = jobs.launcher(DEAF)
    run("stop", str(jobs.run), "--grace", "0.5")
    assert launcher.wait(5) == -signal.SIGKILL and tagged(jobs.id) == []


def test_all_mine(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the jobs made here: other tests run beside this one."""
    import shoal.launch.stopping as stopping

    with ExitStack() as stack:
        (tmp_path / "second").mkdir()
        second = Jobs(tmp_path / "second", stack)
        workers = [jobs.worker(0), second.worker(0)]
        mine = {jobs.id, second.id}
        real = stopping.tagged
        monkeypatch.setattr(stopping, "tagged", lambda job=None: [one for one in real(job) if one.job in mine])
        result = run("stop", "--all-mine")
        assert sorted(result.stdout.splitlines()) == sorted(
            f"localhost: job {one.id} ({one.run}): 1 ended" for one in (jobs, second)
        )
        assert [worker.wait(5) for worker in workers] == [-signal.SIGTERM] * 2


def test_what_cannot_be_meant(tmp_path: Path) -> None:
    for words in ((), ("x", "--all-mine")):
        with pytest.raises(UsageError, match="either RUN"):
            run("stop", *words)
    with pytest.raises(UsageError, match=r"no run folder .*nowhere, and no process of it is alive; `shoal ps` lists"):
        run("stop", str(tmp_path / "nowhere"))
    assert run("stop", "0" * 16).stdout == f"nothing of {'0' * 16} is alive on localhost\n"


def test_a_host_that_cannot_be_asked_is_told(jobs: Jobs) -> None:
    """One line for it, the answers of all others, exit 1."""
    process = jobs.worker(0)
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "ps", "-H", "localhost,nowhere.invalid", "--ssh-config", "/dev/null"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and f" {process.pid} " in done.stdout
    assert done.stderr.startswith("shoal: nowhere.invalid: no host of that name") and done.stderr.count("\n") == 1
