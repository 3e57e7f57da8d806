"""What a training tells of its time: all of it and none twice, also where it ends early or its first worker saves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from gangs import GangPool
from shoal.base.run import Run
from shoal.kvstore.client import RolledBack
from shoal.recipe.load import load
from shoal.report.sinks import Event, Sink
from shoal.step.gang import Alone, Gang
from shoal.train import checkpoint, worker
from shoal.train.setup import Setup, manifest, open_data
from shoal.train.signals import StopSignals
from shoal.train.timing import told_every
from shoal.train.trainer import Trainer

SLOW_S = 0.4


class Kept(Sink):
    """Events in memory; drawing takes long."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass

    def show_examples(self, step: int, predictions: Any) -> None:
        time.sleep(SLOW_S)


def trainer_of(gang: Gang, folder: Path, *overrides: str) -> tuple[Trainer, Kept]:
    recipe = load("digits", ["schedule=constant", "log_every=4st", "data.threads=0", *overrides]).recipe
    data, sink = open_data(recipe), Kept()
    return Trainer(Setup.of(recipe, gang, data), Run(folder), sink, manifest(recipe, "digits", data, 1)), sink


def slow_saves(gang: Gang, folder: Path, strategy: str) -> tuple[list[Event], float]:
    """Events, and the seconds from the first step done to the end."""
    overrides = (f"strategy={strategy}", "length=12st", "save_every=3st", "eval_every=7st")
    trainer, sink = trainer_of(gang, folder, *overrides)

    def save(*_: Any, **__: Any) -> None:
        time.sleep(SLOW_S)

    with (
        patch.object(checkpoint, "save", save),
        patch.object(checkpoint, "prune"),
        patch.object(checkpoint, "mark_best"),
    ):
        trainer.fit(StopSignals())
    assert trainer.first_step_at is not None
    return sink.events, time.time() - trainer.first_step_at


@pytest.mark.parametrize(("strategy", "meetings"), [("ddp", 11), ("local_sgd:every=2", 4)], ids=["ddp", "local_sgd"])
def test_parts_exclude_each_other_where_the_first_worker_saves(
    gang_pool: GangPool, tmp_path: Path, strategy: str, meetings: int
) -> None:
    events, wall = gang_pool.run(slow_saves, 2, tmp_path, strategy)[0]
    (told,) = [event for event in events if event["event"] == "time"]
    paused = [event["seconds"] for event in events if event["event"] in ("val", "save")]
    saves = sum(event["event"] == "save" for event in events)
    drawn = SLOW_S * sum(event["event"] == "val" for event in events)
    assert saves >= 4 and sum(paused) >= saves * SLOW_S
    assert 0.8 * wall < sum(told["parts"].values()) + sum(paused) + drawn < 1.01 * wall
    assert told["steps"] == 11 and told["slowest"]["of"] == meetings


def test_a_training_that_ends_early_has_told_of_every_step(tmp_path: Path) -> None:
    trainer, sink = trainer_of(Alone(), tmp_path, "length=9000st", "eval_every=6st", "desired_accuracy=0.01")
    trainer.fit(StopSignals())
    assert trainer.clock.stopped == "desired_accuracy"
    assert [event["steps"] for event in sink.events if event["event"] == "time"] == [5]


@pytest.mark.parametrize(("steps", "every"), [(100, 40), (5000, 100), (90000, 500)])
def test_how_often_it_is_told(steps: int, every: int) -> None:
    assert told_every(steps) == every


def test_a_rollback_begins_a_sitting_of_its_own(tmp_path: Path) -> None:
    began: list[float] = []

    def train(*_: Any, **told: Any) -> int:
        began.append(told["began"])
        if len(began) == 1:
            raise RolledBack("a server began again")
        return 0

    loaded = load("digits", ["strategy.threads=1"])
    before = time.time()
    with patch.object(worker, "_train", train):
        assert worker.work(loaded, Run(tmp_path), None, StopSignals(), resume="auto", began=7.0) == 0
    assert began[0] == 7.0 and before <= began[1] <= time.time()
