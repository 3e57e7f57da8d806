"""Meters: sums that stay on the device and are read one interval late."""

from __future__ import annotations

from typing import NamedTuple

import torch

from shoal.data.batches import Batch
from shoal.step.gang import Gang


class Metrics(NamedTuple):
    """Means over `count` images."""

    loss: float
    top1: float
    top5: float
    count: int


def tally(loss_sum: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """float64 [4]: loss summed, correct at rank 1, correct within 5, images.

    An image is correct within k when fewer than k classes come before its label; equal logits are ordered by class,
    as argmax orders them, and nothing is correct where a logit is not a number. Images without a label do not count.
    """
    known = labels >= 0
    wanted = logits.gather(1, labels.clamp(min=0)[:, None])
    earlier = torch.arange(logits.shape[1], device=logits.device) < labels[:, None]
    rank = (~(logits <= wanted) | ((logits == wanted) & earlier)).sum(1)
    counts = torch.stack([known & (rank < 1), known & (rank < 5), known]).sum(1)
    return torch.cat([loss_sum.detach()[None].double(), counts.double()])


class Meters:
    """Sums of one slot per shard. Each slot is filled by one worker and zero at the others, so the sum over workers
    adds nothing but zeros: equal bits for any number of workers."""

    def __init__(self, shards: int, gang: Gang) -> None:
        self._gang = gang
        self._interval = torch.zeros(shards, 4, dtype=torch.float64, device=gang.device)
        self._epoch = torch.zeros(shards, 4, dtype=torch.float64, device=gang.device)

    def add(self, batch: Batch, sums: torch.Tensor) -> None:
        self._interval[batch.shards[0][0]] += sums

    def read_interval(self) -> Metrics:
        """Means since the last call. A collective: every worker calls it."""
        summed = self._summed()
        self._epoch += summed
        self._interval.zero_()
        return _means(summed)

    def read_epoch(self) -> Metrics:
        """Means since the last call of `read_epoch`; the interval goes on. A collective."""
        interval = self._summed()
        summed = self._epoch + interval
        self._epoch = -interval  # the interval's sums were counted here and will come once more
        return _means(summed)

    def state(self) -> torch.Tensor:
        """float64 [2, shards, 4], equal on all workers. A collective."""
        return torch.stack([self._summed(), self._epoch]).cpu()

    def load(self, state: torch.Tensor) -> None:
        if state.shape != (2, *self._interval.shape):  # other shards: a changed recipe, whose means start anew
            return
        self._interval.copy_(state[0] if self._gang.rank == 0 else torch.zeros_like(state[0]))
        self._epoch.copy_(state[1])

    def _summed(self) -> torch.Tensor:
        summed = self._interval.clone()
        self._gang.sum(summed)
        return summed


def _means(slots: torch.Tensor) -> Metrics:
    loss, top1, top5, count = slots.cpu().sum(0).tolist()
    count_whole = round(count)
    return Metrics(loss / max(count, 1), top1 / max(count, 1), top5 / max(count, 1), count_whole)
