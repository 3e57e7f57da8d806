"""Meters: sums that stay on the device and are read one interval late."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from shoal.data.batches import Batch
from shoal.data.order import share
from shoal.data.source import NO_IMAGE
from shoal.step.gang import Gang
from shoal.step.task import Task, TwoPartTask


class Parts(NamedTuple):
    """Of a loss in two parts."""

    images: int
    """With and without label."""
    label: float
    """Mean over the labelled images; not a number where there are none."""
    distill: float
    """Mean over all images."""


class Metrics(NamedTuple):
    """Means over `count` labelled images; a loss in two parts, over all images."""

    loss: float
    top1: float
    top5: float
    count: int
    parts: Parts | None = None

    @property
    def seen(self) -> int:
        """Images that count for the loss."""
        return self.parts.images if self.parts else self.count

    def figures(self) -> dict[str, float]:
        """As events tell them."""
        parts = {"loss_label": self.parts.label, "loss_distill": self.parts.distill} if self.parts else {}
        return {"loss": self.loss, "top1": self.top1, "top5": self.top5, **parts}


_COLUMNS = 6
"""Sums of a slot: loss, correct at rank 1 and within 5, labelled images; of a loss in two parts: images, label loss."""
_MOST_KEPT = 1 << 22
"""Logits kept uncounted, in numbers (16 MiB of float32)."""


def hits(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """logits [B, classes], labels int64 [B] -> bool [B, 3]: correct at rank 1, correct within 5, has a label.

    An image is correct within k when fewer than k classes come before its label; equal logits are ordered by class,
    as argmax orders them, and nothing is correct where a logit is not a number. Images without a label do not count.
    """
    known = labels >= 0
    wanted = logits.gather(1, labels.clamp(min=0)[:, None])
    earlier = torch.arange(logits.shape[1], device=logits.device) < labels[:, None]
    rank = ((logits > wanted) | ((logits == wanted) & earlier)).sum(1)
    ranked = known & ~logits.isnan().any(1)  # a NaN is neither more nor less than any other logit
    return torch.stack([ranked & (rank < 1), ranked & (rank < 5), known], 1)


class StepOutput(NamedTuple):
    """What one forward pass leaves for the meters; on the device, and detached."""

    loss: torch.Tensor
    """Summed over the batch, []."""
    logits: torch.Tensor
    """[B, classes]."""


class Meters:
    """Sums of one slot per shard. Each slot is filled by one worker and zero at the others, so the sum over workers
    adds nothing but zeros: equal bits for any number of workers.

    Outputs are kept and counted many at a time: small operations between two steps cost several times their own time.
    """

    def __init__(self, shards: int, gang: Gang, task: Task | None = None) -> None:
        self._gang = gang
        self._task = task if isinstance(task, TwoPartTask) else None
        self._interval = [[0.0] * _COLUMNS for _ in range(shards)]
        self._epoch = torch.zeros(shards, _COLUMNS, dtype=torch.float64)
        self._kept: list[tuple[int, StepOutput, torch.Tensor]] = []
        self._numbers = 0
        self._own = torch.zeros(shards, _COLUMNS, dtype=torch.float64)

    def add(self, batch: Batch, output: StepOutput) -> None:
        if len(output.logits):
            self._kept.append((batch.first_shard, output, batch.labels))
            self._numbers += output.logits.numel()
            if self._numbers > _MOST_KEPT:
                self._count()

    def _count(self) -> None:
        """Adds what was kept to the slots, in the order it came."""
        kept, self._kept, self._numbers = self._kept, [], 0
        if not kept:
            return
        losses = torch.stack([output.loss for _, output, _ in kept]).double().tolist()
        logits = torch.cat([output.logits for _, output, _ in kept])
        labels = torch.cat([labels for _, _, labels in kept]).to(logits.device)
        batch = torch.repeat_interleave(torch.tensor([len(labels) for _, _, labels in kept])).to(logits.device)
        counts = torch.zeros(len(kept), 3, dtype=torch.int64, device=logits.device)
        counts.index_add_(0, batch, hits(logits, labels).long())
        for (slot, _, _), *row in zip(kept, losses, *counts.T.tolist(), *self._parts(kept), strict=True):
            sums = self._interval[slot]
            for column, value in enumerate(row):
                sums[column] += value

    def _parts(self, kept: list[tuple[int, StepOutput, torch.Tensor]]) -> tuple[Sequence[float], ...]:
        """Images and label loss of each output, where the loss has two parts."""
        if self._task is None:
            return ()
        images = [int((labels != NO_IMAGE).sum()) for _, _, labels in kept]
        sums = [self._task.label_loss(output.logits, labels.to(output.logits.device)) for _, output, labels in kept]
        return images, torch.stack(sums).double().tolist()

    def read_interval(self) -> Metrics:
        """Means since the last call. A collective: every worker calls it."""
        summed = self._summed()
        self._epoch += summed
        self._interval = [[0.0] * _COLUMNS for _ in self._interval]
        self._own.zero_()
        return self._means(summed)

    def read_epoch(self) -> Metrics:
        """Means since the last call of `read_epoch`; the interval goes on. A collective."""
        interval = self._summed()
        summed = self._epoch + interval
        self._epoch = -interval  # the interval's sums were counted here and will come once more
        return self._means(summed)

    def read_own(self) -> Metrics:
        """Means over this worker's images since the last call; no collective. Within one interval."""
        self._count()
        summed = torch.tensor(self._interval, dtype=torch.float64)
        own, self._own = summed - self._own, summed
        return self._means(own)

    def state(self) -> torch.Tensor:
        """float64 [2, shards, columns], equal on all workers. A collective."""
        return torch.stack([self._summed(), self._epoch])

    def load(self, state: torch.Tensor) -> None:
        if state.shape != (2, *self._epoch.shape):  # other shards: a changed recipe, whose means start anew
            return
        # Each slot goes to the worker that will go on filling it: its sum continues as if never interrupted.
        mine = share(len(self._interval), *self._gang.place) if self._gang.speaks else range(0)
        self._interval = [row if slot in mine else [0.0] * _COLUMNS for slot, row in enumerate(state[0].tolist())]
        self._epoch.copy_(state[1])

    def _summed(self) -> torch.Tensor:
        self._count()
        summed = torch.tensor(self._interval, dtype=torch.float64, device=self._gang.device)
        self._gang.sum(summed)
        return summed.cpu()

    def _means(self, slots: torch.Tensor) -> Metrics:
        loss, top1, top5, count, images, label = slots.sum(0).tolist()
        if self._task is None:
            return Metrics(loss / max(count, 1), top1 / max(count, 1), top5 / max(count, 1), round(count))
        rest = self._task.without_labels(loss, label)
        parts = Parts(round(images), label / count if count else math.nan, rest / max(images, 1))
        top1, top5 = (correct / count if count else math.nan for correct in (top1, top5))
        return Metrics(loss / max(images, 1), top1, top5, round(count), parts)
