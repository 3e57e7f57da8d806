"""A worker that gets on no more is named with state, stack and everybody's position; who waits for it is not blamed."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny import head, worker

from shoal.launch import pulses
from shoal.launch.ending import Ending, outcome
from shoal.launch.hangs import Hangs
from shoal.launch.job import Outcome
from shoal.launch.pulse import LONG, MEETS, PULSE, STARTS, Pulse, make_pulse, read_pulse
from shoal.launch.pulses import Pulses
from shoal.launch.report import Report

PULSE_OF = "from shoal.launch.pulse import *; stacks_on_signal(os.environ); pulse = Pulse.from_env(os.environ)\n"
WAITS = PULSE_OF + "pulse.beat('exchanges', 7); time.sleep(60)"


# The pulse


def test_a_pulse_is_read_from_outside() -> None:
    descriptor = make_pulse()
    assert read_pulse(descriptor) is None
    pulse = Pulse.from_env({PULSE: str(descriptor)})
    assert read_pulse(descriptor) is None
    pulse.beat("computes", 12, LONG)
    beat = read_pulse(descriptor)
    assert beat is not None
    assert (beat.phase, beat.step, beat.pid, beat.patience) == ("computes", 12, os.getpid(), LONG)
    assert beat.age_s < 1


def test_without_an_agent_a_pulse_does_nothing() -> None:
    for env in ({}, {PULSE: "no number"}, {PULSE: "99999"}):
        Pulse.from_env(env).beat("computes", 1)


def test_a_beat_costs_next_to_nothing() -> None:
    pulse = Pulse(make_pulse())
    began = time.perf_counter()
    for step in range(10_000):
        pulse.beat("computes", step)
    assert (time.perf_counter() - began) / 10_000 < 50e-6


# Who is it?


def position(name: str, **more: Any) -> dict[str, Any]:
    usual = {"pid": 1, "state": "S", "phase": "computes", "step": 5, "age_s": 61.0, "patience": 1.0, "stack": ""}
    return {"name": name, **usual, **more}


def stack(file: str) -> str:
    other = 'Thread 0x01 (most recent call first):\n  File "queue.py", line 1 in get\n'
    own = f'Current thread 0x02 (most recent call first):\n  File "{file}", line 3 in verb\n  File "m.py", line 1\n'
    return f"{other}\n{own}"


IN_COLLECTIVE = stack("/x/torch/distributed/distributed_c10d.py")
IN_BACKWARD = stack("/x/torch/autograd/graph.py")


@pytest.mark.parametrize(
    ("culprit", "others"),
    [
        ({"state": "T"}, {"stack": IN_COLLECTIVE}),
        ({"state": "D", "step": 6}, {"stack": IN_COLLECTIVE}),
        ({"stack": stack("/my/decode.py")}, {"stack": IN_COLLECTIVE, "age_s": 99.0}),
        ({"stack": stack("/my/model.py")}, {"stack": IN_BACKWARD}),
        ({"stack": IN_COLLECTIVE, "step": 4}, {"stack": IN_COLLECTIVE}),
        ({"age_s": 70.0}, {}),
    ],
)
def test_the_one_that_holds_up_the_others(culprit: dict[str, Any], others: dict[str, Any]) -> None:
    hangs = Hangs()
    hangs.heed("a", {"is": "still", "positions": [position("worker 0", **others), position("worker 1", **culprit)]})
    assert hangs.found({"a", "b"}, 60) is None, "somebody gets on"
    hangs.heed("b", {"is": "still", "positions": [position("worker 2", **others)]})
    found = hangs.found({"a", "b"}, 60)
    assert found is not None
    assert found.name == "worker 1"
    assert found.manner.startswith("no progress for 60 s: pid 1, state ")
    assert any("worker 0 on a computes after step" in line for line in found.lines)
    assert any("worker 2 on b computes after step" in line for line in found.lines)
    hangs.heed("b", {"is": "moving", "positions": []})
    assert hangs.found({"a", "b"}, 60) is None


def test_who_is_late_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.launch.hangs._TELL_S", 0.0)
    hangs = Hangs()
    assert hangs.late({"a", "b"}) == ""
    late = [position("worker 0", phase=MEETS, step=0), position("worker 1", phase="starts", step=0, state="T")]
    hangs.heed("a", {"is": "late", "positions": late})
    told = hangs.late({"a", "b"})
    assert "still on the way: worker 1 on a starts for 61 s (state T, stopped); waiting: worker 0" in told
    assert hangs.late({"a", "b"}) == ""


def test_patience_is_multiplied_and_others_are_waited_for() -> None:
    watch = Pulses(0.05)
    descriptors = [watch.make(name)[PULSE] for name in ("worker 0", "worker 1")]
    watch.started({"worker 0": os.getpid(), "worker 1": os.getpid()})
    saving, waiting = (Pulse(descriptor) for descriptor in descriptors)
    saving.beat("saves", 3, 1000.0)
    waiting.beat("exchanges", 3)
    time.sleep(0.1)
    assert watch.look() == []
    watch.forget()


def test_loading_libraries_takes_its_time_however_short_a_hang_is() -> None:
    watch = Pulses(0.001)
    descriptor = watch.make("worker 0")[PULSE]
    watch.started({"worker 0": os.getpid()})
    time.sleep(0.05)
    assert watch.look() == []
    pulse = Pulse(descriptor)
    pulse.beat(STARTS, 0)
    time.sleep(0.05)
    assert watch.look() == [] and watch._asked_at is None
    pulse.beat("computes", 1)
    time.sleep(0.05)
    watch._ask = lambda worker: None  # type: ignore[method-assign]  # it would be this process
    watch.look()
    assert watch._asked_at is not None
    watch.forget()


# Real processes


def run(folder: Path, *scripts: str, **job: Any) -> tuple[list[str], float, str]:
    console = io.StringIO()
    commands = [worker(rank, script, folder) for rank, script in enumerate(scripts)]
    began = time.monotonic()
    ended = head(commands, console=console, report_s=0.1, **job).start().wait(timeout_s=30)
    assert ended.exit_code == 1
    return list(ended.lines), time.monotonic() - began, console.getvalue()


IN_C = """
import ctypes
read, ends = ctypes.PyDLL(None).read, os.pipe()
def stuck():
    read(ends[0], b"x", 1)
stuck()
"""
HANGS = {
    "asleep in Python": "def stuck():\n    time.sleep(60)\nstuck()",
    "in C with Python's lock": IN_C,
    "running in Python": "def stuck():\n    while True: pass\nstuck()",
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("case", HANGS)
def test_a_hang_is_named_with_its_stack(case: str, tmp_path: Path) -> None:
    lines, seconds, _ = run(tmp_path, WAITS, PULSE_OF + "pulse.beat('computes', 6)\n" + HANGS[case], hang_s=0.5)
    assert seconds < 15
    said = "\n".join(lines)
    assert "worker 1 failed first: no progress for 0.5 s: pid " in said
    assert "computes after step 6" in said
    assert " in stuck" in said
    assert "meanwhile worker 0 exchanges after step 7" in said
    assert lines[-1].startswith("log: ")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stopped_worker_is_named(tmp_path: Path) -> None:
    stops = "pulse.beat('computes', 7); os.kill(os.getpid(), signal.SIGSTOP)"
    lines, _, _ = run(tmp_path, WAITS, PULSE_OF + stops, hang_s=0.5)
    assert "worker 1 failed first" in "\n".join(lines)
    assert "state T, stopped, computes after step 7" in "\n".join(lines)


def test_a_program_without_a_pulse_never_hangs(tmp_path: Path) -> None:
    ended = head([worker(0, "time.sleep(1.5)", tmp_path)], hang_s=0.2, worlds="all").start().wait(timeout_s=30)
    assert ended.exit_code == 0


def test_missing_workers_are_named_while_they_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pulses.LATE_S <= 25, "promised within 30 s"
    # The agent is a process of its own: what it looks at is tested here in this one.
    monkeypatch.setattr(pulses, "LATE_S", 0.0)
    watch = Pulses(None)
    descriptor = watch.make("worker 0")[PULSE]
    watch.make("worker 1")
    watch.started({"worker 0": os.getpid(), "worker 1": os.getpid()})
    Pulse(descriptor).beat(MEETS, 0)
    time.sleep(0.01)
    ((what, positions),) = watch.look()
    assert what == "late"
    assert [(one["name"], one["phase"]) for one in positions] == [("worker 0", MEETS), ("worker 1", "starts")]
    assert watch.look() == []


def test_who_ended_well_but_early_is_named_where_the_others_miss_it() -> None:
    early, late = Ending("worker 1", Path("log"), host="b"), Ending("worker 0", Path("log"), host="a")
    early.ended(0, 10.0)
    late.reported(Report("Connection closed by peer", collateral=True, time=10.5))
    late.ended(1, 11.0)
    assert outcome([late, early]).lines[:2] == (
        "worker 1 on b ended before, with exit 0 as if all were done: look there for the cause",
        "worker 0 on a failed first: exit 1",
    )


def test_a_job_that_was_stopped_before_it_started_says_so() -> None:
    told = Outcome(75, ("told to stop before the start (SIGTERM)",))
    assert outcome([Ending("worker 0", Path("log")), Ending("worker 1", Path("log"))], told) == told
    assert outcome([], told) == told
