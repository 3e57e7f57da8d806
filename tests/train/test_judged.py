"""Counts by class add up to the validation's, from any number of workers."""

from __future__ import annotations

import pytest
import torch

from gangs import GangPool
from shoal.data.augment import Augment
from shoal.data.batches import Batch
from shoal.data.sources.synthetic import Synthetic
from shoal.report.confusion import Confusion, Row
from shoal.step.gang import Alone, Gang
from shoal.train.evaluate import Score, judge

CLASSES = 7


def logits_of(batch: Batch) -> torch.Tensor:
    return torch.sin(torch.outer(batch.indices.double() + 1, torch.arange(1.0, CLASSES + 1, dtype=torch.float64)))


def counted(gang: Gang) -> tuple[Score, list[Row]]:
    data = Synthetic(images=160, classes=CLASSES, channels=1, size=8).open("val")
    data.labels[[3, 11]] = -1
    score, predictions = judge(logits_of, data, Augment(), 7, gang)
    return score, Confusion.of(predictions).by_class()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_any_number_of_workers_counts_the_same(gang_pool: GangPool, n: int):
    score, rows = counted(Alone())
    assert gang_pool.run(counted, n) == [(score, rows)] * n
    assert sum(row.count for row in rows) == score.count
    assert sum(row.correct1 for row in rows) == score.correct1 > 0
    assert sum(row.correct5 for row in rows) == score.correct5 < score.count


def of_three(logits: torch.Tensor, labels: list[int]) -> list[tuple]:
    """What is counted of as many images as labels, by class."""
    data = Synthetic(images=8 * len(labels), classes=3, channels=1, size=8).open("val")
    data.labels = torch.tensor(labels).numpy()
    rows = Confusion.of(judge(lambda batch: logits[batch.indices], data, Augment(), 64, Alone())[1]).by_class()
    return [(row.name, row.count, row.correct1, row.correct5, row.mostly, row.mistaken) for row in rows]


def test_what_a_class_is_mistaken_for():
    first, _, third = Synthetic(images=160, classes=3, channels=1, size=8).open("val").classes
    rows = of_three(torch.eye(3)[[0, 1, 1, 2, 2, 0]], [0, 0, 0, 0, 2, -1])
    second = rows[0][4]
    assert rows == [(first, 4, 1, 4, second, 2), (third, 1, 1, 1, "", 0)] and second not in (first, third)


def test_equal_logits_count_as_the_score_has_them():
    """The class that comes first wins, whatever argmax would say."""
    assert [row[2] for row in of_three(torch.zeros(3, 3), [0, 1, 2])] == [1, 0, 0]
