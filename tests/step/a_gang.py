"""A gang whose workers are threads of the test, and batches for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from shoal.data.batches import Batch
from shoal.step.gang import Gang
from shoal.step.threads import Crew

T = TypeVar("T")


def together(num_ranks: int, work: Callable[[Gang], T]) -> list[T]:
    """What `work` returns at each rank; the first error of any."""
    crew = Crew([torch.device("cpu")] * num_ranks, wait_s=20)
    try:
        return crew.each(work)
    finally:
        crew.close()


def a_batch(labels: list[int], shards: tuple[tuple[int, int], ...] = (), *, step: int = 0) -> Batch:
    """A batch of grey 4x4 images; without `shards`, all of it is shard 0."""
    count = len(labels)
    images = torch.zeros(count, 1, 4, 4, dtype=torch.uint8)
    held = torch.tensor(labels, dtype=torch.int64)
    return Batch(images, held, torch.arange(count), count, step, shards or ((0, count),))
