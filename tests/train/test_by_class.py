"""Counts by class add up to the validation's, from any number of workers."""

from __future__ import annotations

import pytest
import torch

from gangs import GangPool
from shoal.data.augment import Augment
from shoal.data.batches import Batch
from shoal.data.sources.synthetic import Synthetic
from shoal.step.gang import Alone, Gang
from shoal.train.by_class import ByClass, Row
from shoal.train.evaluate import Score, evaluate

CLASSES = 7


def logits_of(batch: Batch) -> torch.Tensor:
    return torch.sin(torch.outer(batch.indices.double() + 1, torch.arange(1.0, CLASSES + 1, dtype=torch.float64)))


def counted(gang: Gang) -> tuple[Score, list[Row]]:
    data = Synthetic(images=160, classes=CLASSES, channels=1, size=8).open("val")
    data.labels[[3, 11]] = -1
    by_class = ByClass(CLASSES, gang)
    score = evaluate(by_class.watched(logits_of), data, Augment(), 7, gang)
    return score, by_class.rows()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_any_number_of_workers_counts_the_same(gang_pool: GangPool, n: int):
    score, rows = counted(Alone())
    assert gang_pool.run(counted, n) == [(score, rows)] * n
    assert sum(row.count for row in rows) == score.count
    assert sum(row.correct1 for row in rows) == score.correct1 > 0
    assert sum(row.correct5 for row in rows) == score.correct5 < score.count


def test_what_a_class_is_mistaken_for():
    by_class = ByClass(3, Alone())
    labels = torch.tensor([0, 0, 0, 0, 2, -1])
    guesses = torch.eye(3)[[0, 1, 1, 2, 2, 0]]
    by_class.watched(lambda batch: guesses)(Batch(guesses, labels, labels, 6))
    assert by_class.rows() == [Row(0, 4, 1, 4, 1, 2), Row(2, 1, 1, 1, None, 0)]


def test_equal_logits_count_as_the_score_has_them():
    """The class that comes first wins, whatever argmax would say."""
    by_class = ByClass(3, Alone())
    even, labels = torch.zeros(3, 3), torch.tensor([0, 1, 2])
    by_class.watched(lambda batch: even)(Batch(even, labels, labels, 3))
    assert [row.correct1 for row in by_class.rows()] == [1, 0, 0]
