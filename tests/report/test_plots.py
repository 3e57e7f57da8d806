"""Plots: a picture at every stage of a training, whole or absent."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from a_training import END, START, TRAIN, VAL, reported

from shoal.base.errors import ShoalError
from shoal.base.run import Run
from shoal.report.plots import curves

UNMEASURED = dict.fromkeys(("loss", "top1", "top5", "images_per_s"))
AGAIN = START | {"step": 23, "images": 1438, "resumed_from": 23}
LATER = TRAIN | {"step": 40, "images": 2526, "loss": 0.01}


@pytest.mark.parametrize(
    "events",
    [
        [START, TRAIN, VAL, AGAIN, LATER, VAL | {"step": 46, "images": 2876, "epoch": 1}, END],
        [START, TRAIN],
        [START, VAL],
        [START, TRAIN | UNMEASURED, VAL | {"loss": None, "top1": None}],
        [START, TRAIN | {"loss": -1.0, "lr": 0.0, "top1": 0.0}],
    ],
    ids=["resumed", "one report", "validation only", "nothing measured", "odd values"],
)
@pytest.mark.filterwarnings("error")
def test_a_picture_is_drawn(tmp_path: Path, events: list[dict]) -> None:
    run = reported(tmp_path, *events)
    assert curves(run) == run.curves
    head = run.curves.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    assert struct.unpack(">II", head[16:]) == (1650, 528)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "metrics.jsonl"]


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="nothing to draw"):
        curves(reported(tmp_path, START))
    with pytest.raises(ShoalError, match="nothing to draw"):
        curves(Run(tmp_path / "empty"))
    assert not (tmp_path / "curves.png").exists()
