"""Agents that a program of an engine starts: here sh, on this host."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.base.errors import ShoalError, UsageError
from shoal.launch.come import come
from shoal.launch.hosts import Host
from shoal.launch.job import Job, Plan, Role
from shoal.launch.plan import plan_of
from shoal.launch.summon import agent_argv, summon


def plan(folder: Path, *argv: str, nodes: int = 2) -> Plan:
    job = Job((Role("worker", nodes, argv),), folder / "run", worlds="all", hang_s=None, id="0123456789abcdef")
    return plan_of(replace(job, hosts=tuple(Host(f"node-{node}") for node in range(nodes))), "test")


def engine(*nodes: int) -> tuple[str, ...]:
    starts = " & ".join(f"SHOAL_HEAD_NODE={node} {shlex.join(agent_argv(None))}" for node in nodes)
    return ("sh", "-c", f"{starts} & wait")


def test_they_come_in_any_order_and_run_the_job(tmp_path: Path) -> None:
    handle = summon(plan(tmp_path, "sh", "-c", "echo $RANK; env"), engine(1, 0), address="127.0.0.1")
    assert handle.wait(30).exit_code == 0
    said = (tmp_path / "run/logs/worker-1.log").read_text()
    assert said.startswith("1\n") and "SHOAL_HEAD_SECRET" not in said


def test_an_engine_that_ends_is_told_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match=r"no agent came from node-0, node-1: sh ended \(exit 3\):\n  no such queue"):
        summon(plan(tmp_path, "true"), ("sh", "-c", "echo no such queue >&2; exit 3"), address="127.0.0.1")
    with pytest.raises(ShoalError, match="cannot start nothing-of-that-name"):
        summon(plan(tmp_path, "true"), ("nothing-of-that-name",), address="127.0.0.1")


def test_who_does_not_come_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match=r"no agent came from node-1 within 1\.5 s; sh says"):
        summon(plan(tmp_path, "true"), engine(0), address="127.0.0.1", wait_s=1.5)


def test_an_address_that_is_none_of_ours(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot listen on 198\.51\.100\.7"):
        summon(plan(tmp_path, "true"), ("true",), address="198.51.100.7")


def test_signals_that_were_passed_on_are_known(tmp_path: Path) -> None:
    handle = summon(plan(tmp_path, "sleep", "60", nodes=1), engine(0), address="127.0.0.1")
    threading.Timer(0.3, signal.raise_signal, [signal.SIGUSR1]).start()
    assert handle.wait(30).exit_code == 75 and handle.told == {signal.SIGUSR1}


def test_come_without_a_launcher_is_told() -> None:
    with pytest.raises(UsageError, match="started by the launchers alone"):
        come({"SHOAL_HEAD": "127.0.0.1:1", "SHOAL_HEAD_SECRET": "x", "SHOAL_HEAD_NODES": "1"})


def test_the_interpreter_there(tmp_path: Path) -> None:
    assert agent_argv("/opt/python")[0] == "/opt/python" and agent_argv(None)[0] == sys.executable
