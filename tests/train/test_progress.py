"""A place in a training, and what it means for one with other batches."""

from __future__ import annotations

import pytest

from shoal.base.duration import Span
from shoal.base.errors import UsageError
from shoal.train.evaluate import Score
from shoal.train.progress import Progress

HERE = Progress(6, 32, 96, 4, "sgd", 0.9, 6, 6, Score(0.1, 90, 99, 100), 5.0, 1.0, 0.1, 3.0)


def test_comes_back_from_plain_values():
    assert Progress.of(HERE.state()) == HERE
    assert isinstance(HERE.state()["score"], dict)


def test_the_same_batches_change_nothing():
    assert HERE.over(Span(96, 32), same_run=True) is HERE


def test_an_epochs_end_has_a_counterpart_in_a_new_run():
    there = HERE.over(Span(96, 64), same_run=False)
    assert there.step == 4  # two epochs of two steps
    assert (there.best_step, there.scored_step) == (-1, -1), "steps of the old count name nothing in the new run"


@pytest.mark.parametrize("step", [5, 7])
def test_inside_an_epoch_there_is_none(step):
    inside = Progress(step, 64, 96, 4, "sgd")  # epochs of two steps, the second of 32 images
    with pytest.raises(UsageError, match="saved inside an epoch of 96 images in batches of 64"):
        inside.over(Span(96, 32), same_run=False)


def test_one_run_counts_in_one_way():
    with pytest.raises(UsageError, match="--run NEW --resume CHECKPOINT"):
        HERE.over(Span(96, 64), same_run=True)
