"""Tables: aligned text, and a training's summary at every stage of its life."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from a_training import END, EPOCH, SAVE, START, TRAIN, VAL, reported

from shoal.base.errors import ShoalError
from shoal.base.run import Run
from shoal.report.tables import best, last, seconds, summary, table


def test_table_sets_numbers_to_the_right() -> None:
    rows = [("ddp", 1169.03, "5 %", 2), ("single", None, "12 %", 1)]
    assert table(rows, ("strategy", "images/s", "waiting", "workers")).splitlines() == [
        "strategy  images/s  waiting  workers",
        "--------  --------  -------  -------",
        "ddp           1169      5 %        2",
        "single           -     12 %        1",
    ]


def test_table_without_header_or_rows() -> None:
    assert table([("a", 1), ("bcd", 22)]) == "a     1\nbcd  22"
    assert table([]) == ""
    assert table([], ("a", "b")) == "a  b\n-  -"
    with pytest.raises(ValueError, match="zip"):
        table([(1, 2), (3,)])


def shown(run: Run) -> dict[str, str]:
    return dict(re.split(r"  +", line, maxsplit=1) for line in summary(run).splitlines())


def test_summary_of_a_finished_training(tmp_path: Path) -> None:
    later = VAL | {"step": 46, "epoch": 1, "images": 2876, "top1": 0.9694, "correct1": 348}
    run = reported(tmp_path, START, TRAIN, EPOCH, VAL, SAVE, later, END)
    for step in (23, 46):
        run.checkpoint(step).mkdir(parents=True)
    run.write_best(23, 0.97493)
    run.tensorboard.mkdir()
    assert shown(run) == {
        "recipe": "digits",
        "model": "digits-cnn, 33,338 parameters",
        "workers": "2 (ddp), batch 64, shards 4",
        "epochs": "2 of 2",
        "images seen": "2,876 in 46 steps",
        "top-1": "0.9694  (348 correct, n = 359, step 46)",
        "top-5": "1.0000  (359 correct, n = 359)",
        "loss": "0.3000  (mean per image, n = 359)",
        "best top-1": "0.9749  (step 23, epoch 1)",
        "speed": "1,169.0 images/s",
        "time trained": "12.3 s",
        "validating, saving": "1.1 s",
        "waiting for data": "0.4% of it",
        "to first step": "3.2 s from process start",
        "whole program": "16.0 s",
        "checkpoint": str(run.checkpoint(46)),
        "best checkpoint": str(run.checkpoint(23)),
        "tensorboard": str(run.tensorboard),
        "metrics": str(run.metrics_file),
    }


def test_summary_of_a_training_under_way(tmp_path: Path) -> None:
    rows = shown(reported(tmp_path, START, TRAIN | {"images_per_s": None, "trained_s": 4000.0}))
    assert rows["epochs"] == "0.8901 of 2, not ended"
    assert rows["validation"] == "none yet"
    assert rows["speed"] == "- images/s"
    assert rows["time trained"] == "1 h 07 min"
    assert "checkpoint" not in rows


def test_summary_just_started_stopped_or_empty(tmp_path: Path) -> None:
    assert shown(reported(tmp_path / "a", START))["epochs"] == "0 of 2, not ended"
    stopped = reported(tmp_path / "b", START, TRAIN, END | {"step": 20, "images": 1280, "reason": "signal"})
    assert shown(stopped)["epochs"] == "0.8901 of 2, stopped by a signal"
    with pytest.raises(ShoalError, match="no training has reported here yet"):
        summary(Run(tmp_path / "c"))


def test_seconds_are_told_in_the_units_they_fill() -> None:
    shown = [seconds(value) for value in (None, 1.25, 167.0, 236.4, 3599.4, 3599.6, 7229.0)]
    assert shown == ["-", "1.2 s", "2 min 47 s", "3 min 56 s", "59 min 59 s", "1 h 00 min", "2 h 00 min"]


def test_last_and_best() -> None:
    events = [VAL, VAL | {"step": 46}, VAL | {"step": 69, "top1": None}]
    assert last(events, "val") == events[2]
    assert last(events, "end") is None
    assert best(events) == events[0]
    assert best([]) is None
