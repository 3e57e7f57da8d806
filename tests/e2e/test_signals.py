"""Asked to stop, all workers save the same step, say how to go on, and leave nothing running."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from figures import STEPS, bits, figures, reached, wait_until
from program import Program, Result, shoal, wait_for
from warm import Warm, warm

from lag import Lag
from shoal.base.run import Run

Ask = Callable[[Program], None]


def to_worker(rank: int, number: int) -> Ask:
    return lambda program: os.kill(program.worker(rank), number)


def to_launcher(number: int) -> Ask:
    return lambda program: program.signal(number)


ASKS = {
    "SIGTERM to worker 1": (to_worker(1, signal.SIGTERM), 75),
    "SIGUSR1 to worker 0": (to_worker(0, signal.SIGUSR1), 75),
    "SIGINT to the launcher": (to_launcher(signal.SIGINT), 130),
    "SIGTERM to the launcher": (to_launcher(signal.SIGTERM), 75),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ASKS)
def test_two_workers_stop_together_and_go_on(case: str, recipe: Path, reference: Path, tmp_path: Path) -> None:
    ask, code = ASKS[case]
    folder = tmp_path / "a run"
    with shoal(tmp_path, "train", recipe, "-n", "2", "--run", folder) as program:
        at = wait_until(folder, 9)
        ask(program)
        result = program.result()
        assert program.alive() == []
    assert result.code == code, result
    assert "failed" not in result.err
    for rank in (0, 1):
        assert "Error" not in Run(folder).log("worker", rank).read_text()
    _goes_on(folder, result, at, reference, workers=2)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)])
def test_one_worker_in_this_very_process(number: int, code: int, recipe: Path, reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Warm(tmp_path, "train", recipe, "--run", folder) as alone:
        at = wait_until(folder, 9)
        alone.signal(0, number)
        (result,) = alone.results()
    assert result.code == code, result
    _goes_on(folder, result, at, reference, workers=1)


def test_a_signal_to_one_of_three_stops_all_at_the_same_step(recipe: Path, reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Warm(tmp_path, "train", recipe, "--run", folder, n=3) as workers:
        at = wait_until(folder, 9)
        workers.signal(2, signal.SIGUSR1)
        results = workers.results()
    assert [result.code for result in results] == [75, 75, 75], "\n".join(map(str, results))
    _goes_on(folder, results[0], at, reference, workers=1)


def _goes_on(folder: Path, result: Result, at: int, reference: Path, *, workers: int) -> None:
    """The command that the message names trains on to the same bits. at: a step before the signal."""
    step = Run(folder).steps_saved()[-1]
    assert at <= step < STEPS, "the signal came after the end: nothing was tested"
    assert step == reached(folder), "what was reported last is what was saved"
    told = f"Stopped; the state after step {step} is saved. Go on with: "
    (line,) = (line for line in result.err.splitlines() if line.startswith(told))
    program, *command = shlex.split(line.removeprefix(told))
    assert program == "shoal"
    at = command.index("-n") if workers == 2 else len(command)
    assert command[at : at + 2] == (["-n", "2"] if workers == 2 else [])
    command = command[:at] + command[at + 2 :]
    resumed = warm(folder.parent, *command, n=3)
    assert resumed.code == 0, resumed
    assert f"Resumed  from step {step}" in resumed.err
    assert bits(folder) == bits(reference)
    assert figures(folder) == figures(reference)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(recipe: Path, tmp_path: Path, lag: Lag) -> None:
    """Also where a worker cannot answer any more."""
    folder = tmp_path / "run"
    with shoal(tmp_path, "train", recipe, "-n", "2", "--run", folder) as program:
        wait_until(folder, 3)
        os.kill(program.worker(1), signal.SIGSTOP)
        program.signal(signal.SIGINT)
        wait_for(lambda: "passed on to 2 workers" in program.err(), "the first to be passed on")
        time.sleep(0.3)
        assert program.process.poll() is None, "with a worker that hangs, the first must wait"
        began = lag.begin()
        program.signal(signal.SIGINT)
        result = program.result()
        assert time.monotonic() - began < lag.allows(5)
        assert program.alive() == []
    assert result.code == 130, result
    assert "told to stop a second time (SIGINT)" in result.err


def test_a_second_ctrl_c_ends_one_worker_inside_a_step(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    slow = ("model={name: cifar-preresnet110}", "batch=400", "shards=1", "log_every=1st", "task.mixup=0")
    with Warm(tmp_path, "train", recipe, *slow, "--run", folder) as alone:
        wait_until(folder, 1)
        alone.signal(0, signal.SIGINT)
        time.sleep(0.05)
        alone.signal(0, signal.SIGINT)
        (result,) = alone.results()
    assert result.code == 130, result
    assert "Traceback" not in result.err
    assert reached(folder) == 1
    assert Run(folder).steps_saved() == []


@pytest.mark.slow
def test_workers_vanish_with_a_killed_launcher(recipe: Path, tmp_path: Path, lag: Lag) -> None:
    folder = tmp_path / "run"
    with shoal(tmp_path, "train", recipe, "-n", "2", "--run", folder, "length=500ep") as program:
        wait_until(folder, 9)
        program.signal(signal.SIGKILL)
        began = lag.begin()
        wait_for(lambda: program.alive() == [], "the workers to vanish")
        assert time.monotonic() - began < lag.allows(5)


def test_workers_vanish_while_they_still_start(recipe: Path, tmp_path: Path, lag: Lag) -> None:
    """A launcher that dies during the seconds of imports leaves nothing either."""
    with shoal(tmp_path, "train", recipe, "-n", "2", "--run", tmp_path / "run") as program:
        wait_for(lambda: len(program.workers()) == 2, "two workers to start")
        program.signal(signal.SIGKILL)
        began = lag.begin()
        wait_for(lambda: program.alive() == [], "the workers to vanish")
        assert time.monotonic() - began < lag.allows(5)
