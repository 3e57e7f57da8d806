"""A gang whose workers are threads of the test, and batches for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from shoal.data.batches import Batch
from shoal.step.gang import Gang, Pending

T = TypeVar("T")


class Threads(Gang):
    """One rank of a gang of threads; sums in rank order."""

    def __init__(self, rank: int, num_ranks: int, desk: list, gate: threading.Barrier) -> None:
        self.rank, self.num_ranks, self.device = rank, num_ranks, torch.device("cpu")
        self._desk, self._gate = desk, gate

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self._desk[self.rank] = tensor.detach().clone()
        self._gate.wait()
        held = list(self._desk)
        self._gate.wait()
        return held

    def sum(self, tensor: torch.Tensor) -> None:
        held = self.gather(tensor)
        tensor.copy_(sum(held[1:], held[0]))

    def sum_later(self, tensor: torch.Tensor) -> Pending:
        self.sum(tensor)
        return Pending()

    def broadcast(self, tensor: torch.Tensor) -> None:
        tensor.copy_(self.gather(tensor)[0])

    def barrier(self) -> None:
        self._gate.wait()

    def close(self) -> None:
        pass


def together(num_ranks: int, work: Callable[[Gang], T]) -> list[T]:
    """What `work` returns at each rank; the first error of any."""
    desk: list = [None] * num_ranks
    gate = threading.Barrier(num_ranks, timeout=20)

    def one(rank: int) -> T:
        try:
            return work(Threads(rank, num_ranks, desk, gate))
        except BaseException:
            gate.abort()
            raise

    with ThreadPoolExecutor(num_ranks) as pool:
        futures = [pool.submit(one, rank) for rank in range(num_ranks)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
    return [future.result() for future in futures]


def a_batch(labels: list[int], shards: tuple[tuple[int, int], ...] = (), *, step: int = 0) -> Batch:
    """A batch of grey 4x4 images; without `shards`, all of it is shard 0."""
    count = len(labels)
    images = torch.zeros(count, 1, 4, 4, dtype=torch.uint8)
    held = torch.tensor(labels, dtype=torch.int64)
    return Batch(images, held, torch.arange(count), count, step, shards or ((0, count),))
