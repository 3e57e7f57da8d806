"""Validation: the same figures from any number of workers, and from the saved file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from shoal.data.augment import Augment
from shoal.data.batches import Batch, eval_chunks
from shoal.data.order import chunk_bounds, share
from shoal.data.source import NO_LABEL, Encoded, Pixels
from shoal.data.upload import Send
from shoal.report.predictions import Predictions
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


_GUESSES = 5
_COLUMNS = 2 + 2 * _GUESSES
"""Of an image: its label, the label's probability, the guesses, their probabilities."""


def judge(
    logits_of: Callable[[Batch], torch.Tensor],
    data: Pixels | Encoded,
    augment: Augment,
    eval_batch: int,
    gang: Gang,
    *,
    threads: int = 0,
    upload: Send | None = None,
    beat: Callable[[], None] = lambda: None,
    together: bool = False,
) -> tuple[Score, Predictions]:
    """Every worker takes whole chunks; counts and float64 loss sums are added in the order of chunks. A collective.

    threads: that decode images ahead, as `data.threads`. upload: of chunks, to where `logits_of` wants them. beat:
    called at every chunk. together: `logits_of` is a collective, which a worker with fewer chunks calls as often as the
    others, with a blank image."""
    images, bounds = len(data.labels), chunk_bounds(len(data.labels), eval_batch)
    chunks = len(bounds)
    while True:
        replica, num_replicas = gang.place
        # One slot per chunk and one row per image, filled by one worker: adding the others' zeros rounds nothing.
        told = torch.zeros((chunks + 1) * 4 + images * _COLUMNS, dtype=torch.float64, device=gang.device)
        slots, rows = told[: (chunks + 1) * 4].view(-1, 4), told[(chunks + 1) * 4 :].view(-1, _COLUMNS)
        slots[-1, 0] = float(gang.speaks)  # counts who came
        taken = eval_chunks(
            data, augment, eval_batch, replica=replica, num_replicas=num_replicas, threads=threads, upload=upload
        )
        beat()
        looked = 0
        for chunk, batch in taken:
            beat()
            batch.arrive()
            labels = batch.labels.to(gang.device).clamp(min=NO_LABEL)
            logits = logits_of(batch)
            looked += 1
            if not gang.speaks:
                continue
            logits = logits if logits.dtype == torch.float64 else logits.float()
            loss = cross_entropy(logits, labels, reduction="none", ignore_index=NO_LABEL)
            slots[chunk, 0] = loss.double().sum()
            slots[chunk, 1:] = hits(logits, labels).sum(0)
            rows[slice(*bounds[chunk])] = _rows(logits, labels)
        if together:
            for _ in range(looked, max(len(share(chunks, other, num_replicas)) for other in range(num_replicas))):
                beat()
                logits_of(_blank(data, augment))
        gang.sum(told)
        *sums, came = slots.cpu()
        if came[0] == num_replicas:
            break
        gang.renew()  # somebody is gone, with chunks that nobody else took
    loss, correct1, correct5, count = torch.stack(sums).sum(0).tolist()
    score = Score(loss / max(count, 1), round(correct1), round(correct5), round(count))
    return score, _predictions(rows.cpu().numpy(), data.classes)


def _blank(data: Pixels | Encoded, augment: Augment) -> Batch:
    """One image without a label, of the size that chunks have."""
    images = torch.zeros(1, data.shape[0], *augment.seen(*data.shape[1:]), dtype=torch.uint8)
    return Batch(images, torch.full((1,), NO_LABEL), torch.zeros(1, dtype=torch.int64), 1)


def _rows(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """float64 [B, _COLUMNS]; without as many classes, the last guesses are -1."""
    probabilities = logits.softmax(1)
    order = _highest(logits, _GUESSES)
    rows = torch.zeros(len(labels), _COLUMNS, dtype=torch.float64, device=logits.device)
    rows[:, 0] = labels
    rows[:, 1] = torch.where(labels >= 0, probabilities.gather(1, labels.clamp(min=0)[:, None])[:, 0], 0.0)
    rows[:, 2 : 2 + _GUESSES] = -1
    rows[:, 2 : 2 + order.shape[1]] = order
    rows[:, 2 + _GUESSES : 2 + _GUESSES + order.shape[1]] = probabilities.gather(1, order)
    return rows


def _highest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """int64 [B, count or as many as there are]: the classes of the highest logits, of equal ones the first one first.

    Sorting all would do; with 100,000 classes it takes longer than the model."""
    if logits.shape[1] <= count:
        return logits.sort(dim=1, descending=True, stable=True).indices
    values, found = logits.topk(count + 1)
    unclear = ~(values[:, :-1] > values[:, 1:]).all(1)
    if unclear.any():
        found[unclear] = logits[unclear].sort(dim=1, descending=True, stable=True).indices[:, : count + 1]
    return found[:, :count]


def _predictions(rows: np.ndarray, classes: tuple[str, ...]) -> Predictions:
    guesses = rows[:, 2 : 2 + _GUESSES].astype(np.int32)
    known = max(1, int((guesses >= 0).any(0).sum()))
    probabilities = rows[:, 2 + _GUESSES : 2 + _GUESSES + known].astype(np.float32)
    labels, of_label = rows[:, 0].astype(np.int32), rows[:, 1].astype(np.float32)
    return Predictions(tuple(classes), labels, guesses[:, :known], probabilities, of_label)
