"""ByClass: a validation's counts class by class, equal for any number of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from shoal.data.batches import Batch
from shoal.step.gang import Gang
from shoal.step.meters import hits


class Row(NamedTuple):
    """What became of the images of one class."""

    label: int
    count: int
    correct1: int
    correct5: int
    mistaken: int | None
    """The wrong class that most of them were taken for; None where none was taken for another."""
    mistakes: int
    """How many were."""


class ByClass:
    """Counts whatever passes through `watched`."""

    def __init__(self, classes: int, gang: Gang) -> None:
        self._gang = gang
        self._correct = torch.zeros(classes, 2, dtype=torch.float64, device=gang.device)
        self._confusion = torch.zeros(classes, classes, dtype=torch.float64, device=gang.device)

    def watched(self, logits_of: Callable[[Batch], torch.Tensor]) -> Callable[[Batch], torch.Tensor]:
        """The same function, whose results are counted."""

        def counted(batch: Batch) -> torch.Tensor:
            logits = logits_of(batch)
            known = batch.labels >= 0
            labels, logits_known = batch.labels[known].to(logits.device), logits[known.to(logits.device)]
            right = hits(logits_known, labels)[:, :2]
            self._correct.index_add_(0, labels, right.double())
            guesses = torch.where(right[:, 0], labels, logits_known.argmax(1))
            self._confusion.index_put_((labels, guesses), torch.ones_like(labels, dtype=torch.float64), accumulate=True)
            return logits

        return counted

    def rows(self) -> list[Row]:
        """One row per class that has images, in their order. A collective."""
        for counts in (self._correct, self._confusion):
            self._gang.sum(counts)
        wrong = self._confusion.clone().fill_diagonal_(0)
        found = []
        for label, count in enumerate(self._confusion.sum(1).long().tolist()):
            if count:
                mistaken = int(wrong[label].argmax())
                mistakes = int(wrong[label, mistaken])
                correct1, correct5 = self._correct[label].long().tolist()
                found.append(Row(label, count, correct1, correct5, mistaken if mistakes else None, mistakes))
        return found
