"""After a failure all begin again, as often as the job may."""

from __future__ import annotations

import io
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from tiny import PRELUDE, SOURCE, log

from shoal.launch.generation import Generation
from shoal.launch.head import Head
from shoal.launch.hosts import Host
from shoal.launch.job import Job, Outcome, Plan, Role
from shoal.launch.launchers.local import local_line
from shoal.launch.line import Line
from shoal.launch.link import Link
from shoal.launch.node import Node
from shoal.launch.plan import plan_of


def restarting(folder: Path, script: str, restarts: int) -> tuple[Outcome, str]:
    """One worker that may start again; what was said meanwhile."""
    console = io.StringIO()
    role = Role("worker", 1, (sys.executable, "-c", PRELUDE + textwrap.dedent(script)), {"FOLDER": str(folder)})
    planned = plan_of(Job((role,), folder, max_restarts=restarts), "local")
    ended = Head(planned, local_line, console=console).start().wait(30)
    return ended, console.getvalue()


def test_a_failure_is_followed_by_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    ended, said = restarting(tmp_path, "g = os.environ['SHOAL_GENERATION']; print('at', g); sys.exit(int(g) < 2)", 2)
    assert ended == Outcome(0)
    assert log(tmp_path, 0) == "at 0\n\n--- restart 1 ---\nat 1\n\n--- restart 2 ---\nat 2\n"
    assert said.count("worker 0 failed first: exit 1") == 2
    assert "restart 2 of 2: 1 worker on localhost" in said


def test_the_last_failure_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    ended, _ = restarting(tmp_path, "print('at', os.environ['SHOAL_GENERATION']); sys.exit(4)", 1)
    assert ended.exit_code == 1
    assert ended.lines[:2] == ("worker 0 failed first: exit 4", "at 1")


def test_wrong_usage_and_a_stop_are_no_failure_to_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    for code in (2, 75):
        ended, said = restarting(tmp_path / str(code), f"sys.exit({code})", 3)
        assert ended.exit_code == code
        assert "restart" not in said


def test_a_killed_agent_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    script = "g = os.environ['SHOAL_GENERATION']; g == '0' and os.kill(os.getppid(), signal.SIGKILL); time.sleep(0.5)"
    ended, said = restarting(tmp_path, script, 1)
    assert ended == Outcome(0), (ended, said)
    assert "restart 1 of 1" in said


def test_told_to_stop_between_two_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody runs whom the signal could be passed on to; it counts all the same."""
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    calls = 0

    def connect(host: Host, plan: Plan, terminal: int | None) -> Line:
        nonlocal calls
        calls += 1
        if calls == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return local_line(host, plan, terminal)

    argv = (sys.executable, "-c", "import os, signal, time; os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)")
    planned = plan_of(Job((Role("worker", 1, argv),), tmp_path, max_restarts=3), "local")
    ended = Head(planned, connect, console=io.StringIO()).start().wait(30)
    assert ended == Outcome(75, ("told to stop before the restart (SIGTERM)",))
    assert calls == 2


def test_the_last_words_of_a_process_that_is_no_more_are_no_fault(tmp_path: Path) -> None:
    """An agent may empty the pipes of the generation before when it starts the next one."""
    role = Role("worker", 1, ("true",))
    generation = Generation(plan_of(Job((role,), tmp_path), "local"), 1)
    node = Node(Host("localhost"), Line(Link(*os.pipe())))
    for message in ({"is": "log", "data": "YQo="}, {"is": "report", "line": "{}"}, {"is": "ended", "status": 0}):
        assert generation.heed(node, {**message, "name": "worker 1"}) is None
    node.line.cut()
    assert list(generation.endings) == ["worker 0"]
