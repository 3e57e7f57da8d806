"""After a failure the workers start again from the newest checkpoint, and train on to the same bits."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from figures import bits, figures, wait_until
from program import run_shoal, shoal, wait_for

from shoal.base.run import Run


@pytest.mark.slow
def test_a_killed_worker_starts_again(recipe: Path, reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with shoal(tmp_path, "train", recipe, "-n", "2", "--max-restarts", "2", "--run", folder) as program:
        wait_until(folder, 9)
        first = program.worker(1)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: program.workers().get(1, first) != first, "worker 1 to start again")
        result = program.result()
        assert program.alive() == []
    assert result.code == 0, result
    assert "worker 1 failed first: killed by SIGKILL (exit -9)" in result.err
    assert "restart 1 of 2: 2 workers on localhost" in result.err
    assert "restart 2" not in result.err
    assert "--- restart 1 ---" in Run(folder).log("worker", 1).read_text()
    assert bits(folder) == bits(reference)
    assert figures(folder) == figures(reference)


@pytest.mark.slow
def test_a_fault_that_stays_is_told_after_the_last_restart(recipe: Path, tmp_path: Path) -> None:
    wild = ("optim.lr=1e20", "schedule=constant", "save_every=1ep")
    result = run_shoal(tmp_path, "train", recipe, *wild, "-n", "2", "--max-restarts", "1", "--run", tmp_path / "run")
    assert result.code == 1, result
    assert result.err.count("the gradient is not finite") >= 2
    assert "restart 1 of 1" in result.err
    assert result.err.rstrip().splitlines()[-1].startswith("log: ")


@pytest.mark.slow
def test_a_wrong_recipe_is_not_tried_again(recipe: Path, tmp_path: Path) -> None:
    optim = "optim={name: timm, opt: lambb, lr: 0.1}"
    result = run_shoal(tmp_path, "train", recipe, optim, "-n", "2", "--max-restarts", "3", "--run", tmp_path / "run")
    assert result.code == 2, result
    assert "restart 1" not in result.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-n", "3:2"], "3:2: expected A:B with 1 <= A <= B"),
        (["-n", "x"], "'x' is no number of workers; expected N, or A:B as in 2:8"),
        (["-n", "1:2", "shards=auto"], "set shards=2"),
        (["-n", "2:8"], "8 workers for 6 shards"),
    ],
)
def test_ranges_of_workers_that_cannot_be(words: list[str], told: str, recipe: Path, tmp_path: Path) -> None:
    result = run_shoal(tmp_path, "train", recipe, *words, "--run", tmp_path / "run")
    assert result.code == 2, result
    assert told in result.err
    assert not (tmp_path / "run").exists()
