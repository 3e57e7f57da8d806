"""Models in parts, trained by commands: gone on with under other strategies, scaled, and with a worker killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from figures import wait_until, weights
from program import shoal
from warm import warm

from shoal.base.run import Run

RECIPE = """\
# Shards of several sizes, an average, momentum; in float64, so that any way of adding comes to the same.
data: {name: digits, limit: 210, augment: {pad: 1}, eval_batch: 100}
model: digits-cnn
optim: {name: sgd, lr: 0.1, momentum: 0.9, weight_decay: 5e-4}
schedule: constant
batch: 35
shards: 3
length: 12st
ema: {half_life: 3st}
precision: fp64
eval_every: 6st
save_every: 6st
log_every: 1st
"""
SCALED = ("precision.name=fp16", "precision.unsuited=slow", "precision.init_scale=131072", "length=5st")


@pytest.fixture(scope="module")
def divisible(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parts") / "parts.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def alone(divisible: Path) -> Path:
    """What one worker makes of it."""
    folder = divisible.parent / "alone"
    result = warm(divisible.parent, "train", divisible, "--run", folder)
    assert result.code == 0, result
    return folder


def _told(folder: Path, kind: str) -> list[dict]:
    return [event for event in Run(folder).read_metrics() if event["event"] == kind]


@pytest.mark.parametrize(
    ("first", "then"),
    [(("fsdp", 2), ("pipeline", 3)), (("pipeline", 2), ("fsdp", 3))],
)
def test_it_goes_on_under_another_strategy(
    first: tuple[str, int], then: tuple[str, int], divisible: Path, alone: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    for length, (strategy, n) in (("6st", first), ("12st", then)):
        words = (f"strategy={strategy}", f"length={length}", "--allow", "length", "--allow", "strategy")
        result = warm(tmp_path, "train", divisible, *words, "--run", folder, n=n)
        assert result.code == 0, result
    assert "Resumed  from step 6" in result.err
    expected, found = weights(alone), weights(folder)
    assert expected.keys() == found.keys()
    for name, held in expected.items():
        torch.testing.assert_close(found[name], held, rtol=1e-12, atol=1e-12, msg=name)
    assert [(one["step"], one["correct1"]) for one in _told(folder, "val")] == [
        (one["step"], one["correct1"]) for one in _told(alone, "val")
    ]


@pytest.mark.slow
def test_all_parts_skip_the_steps_whose_gradients_overflow(divisible: Path, tmp_path: Path) -> None:
    told = {}
    for strategy in ("ddp", "fsdp", "pipeline"):
        folder = tmp_path / strategy
        result = warm(tmp_path, "train", divisible, f"strategy={strategy}", *SCALED, "--run", folder, n=2)
        assert result.code == 0, result
        told[strategy] = [(event["step"], event["loss_scale"]) for event in _told(folder, "skip")]
        assert _told(folder, "end")[0]["skipped"] == len(told[strategy])
    assert 0 < len(told["ddp"]) < 5, "nothing was tried"
    assert told["fsdp"] == told["pipeline"] == told["ddp"]


@pytest.mark.slow
def test_a_stage_that_is_killed_ends_the_pipeline(divisible: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with shoal(
        tmp_path, "train", divisible, "strategy=pipeline", "length=100ep", "-n", "2", "--run", folder
    ) as program:
        wait_until(folder, 8)
        os.kill(program.worker(0), signal.SIGKILL)
        result = program.result(30)
        assert program.alive() == []
    assert result.code == 1, result
    assert "worker 0 failed first: killed by SIGKILL (exit -9)" in result.err
    assert "Traceback" not in result.err, result
