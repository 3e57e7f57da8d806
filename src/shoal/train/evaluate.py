"""Validation: the same figure from any number of workers, and from the saved file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from shoal.data.augment import Augment
from shoal.data.batches import Batch, eval_chunks
from shoal.data.order import chunk_bounds
from shoal.data.source import Encoded, Pixels
from shoal.step.gang import Gang
from shoal.step.meters import hits


@dataclass(frozen=True)
class Score:
    """A validation result: exact counts, and the mean loss over `count` images."""

    loss: float
    correct1: int
    correct5: int
    count: int

    @property
    def top1(self) -> float:
        return self.correct1 / max(self.count, 1)

    @property
    def top5(self) -> float:
        return self.correct5 / max(self.count, 1)


def evaluate(
    logits_of: Callable[[Batch], torch.Tensor],
    data: Pixels | Encoded,
    augment: Augment,
    eval_batch: int,
    gang: Gang,
    *,
    threads: int = 0,
    beat: Callable[[], None] = lambda: None,
) -> Score:
    """Every worker takes whole chunks; counts and float64 loss sums are added in the order of chunks. A collective.

    threads: that decode images ahead, as `data.threads`. beat: called at every chunk."""
    chunks = len(chunk_bounds(len(data.labels), eval_batch))
    while True:
        replica, num_replicas = gang.place
        slots = torch.zeros(chunks + 1, 4, dtype=torch.float64, device=gang.device)
        slots[-1, 0] = 1  # counts who came
        taken = eval_chunks(data, augment, eval_batch, replica=replica, num_replicas=num_replicas, threads=threads)
        beat()
        for chunk, batch in taken:
            beat()
            labels = batch.labels.to(gang.device)
            logits = logits_of(batch)
            loss = cross_entropy(
                logits.float() if logits.dtype != torch.float64 else logits, labels, reduction="none", ignore_index=-1
            )
            slots[chunk, 0] = loss.double().sum()
            slots[chunk, 1:] = hits(logits, labels).sum(0)
        gang.sum(slots)
        *sums, came = slots.cpu()
        if came[0] == num_replicas:
            break
        gang.renew()  # somebody is gone, with chunks that nobody else took
    loss, correct1, correct5, count = torch.stack(sums).sum(0).tolist()
    return Score(loss / max(count, 1), round(correct1), round(correct5), round(count))
