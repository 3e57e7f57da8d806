"""Threads: a gang whose members are threads of one process, each with a device of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TypeVar

import torch

from shoal.data.order import share
from shoal.step.gang import Gang, Pending
from shoal.step.nonfinite import NonFiniteError

T = TypeVar("T")


class Desk:
    """Where the threads of one gang lay down what all may read."""

    def __init__(self, num_ranks: int, *, wait_s: float | None = None) -> None:
        self.gate = threading.Barrier(num_ranks, timeout=wait_s)
        # Two places in turn: whoever is quick lays down its next tensor while others still read this one.
        self._places: list[list] = [[None] * num_ranks for _ in range(2)]

    def meet(self, rank: int, turn: int, tensor: torch.Tensor | None) -> list[torch.Tensor]:
        """Lays down one's own and waits for all; theirs are to be read only, and until the next meeting."""
        place = self._places[turn % 2]
        place[rank] = tensor
        self.gate.wait()
        return list(place)


class Threads(Gang):
    """One member. Sums are made piece by piece, by each member its own, in the order of ranks."""

    def __init__(self, rank: int, device: torch.device, desk: Desk, *, on_host: bool = False) -> None:
        """on_host: add in the host's memory instead of on the device that owns the piece."""
        self.rank, self.num_ranks, self.device = rank, desk.gate.parties, device
        self._desk, self._turn = desk, 0
        self._place = torch.device("cpu") if on_host else device

    @property
    def process(self) -> int:
        return 0

    def _meet(self, tensor: torch.Tensor | None = None) -> list[torch.Tensor]:
        self._turn += 1
        return self._desk.meet(self.rank, self._turn, tensor)

    def sum(self, tensor: torch.Tensor) -> None:
        everyone = [other.reshape(-1) for other in self._meet(tensor)]
        mine = share(tensor.numel(), self.rank, self.num_ranks)
        total = everyone[0][mine.start : mine.stop].to(self._place, copy=True)
        for other in everyone[1:]:
            total += other[mine.start : mine.stop].to(self._place)
        pieces = self._meet(total)  # from here on nobody reads the tensors themselves
        tensor.copy_(torch.cat([piece.to(self.device) for piece in pieces]).view(tensor.shape))

    def sum_later(self, tensor: torch.Tensor) -> Pending:
        self.sum(tensor)
        return Pending()

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        held = [other.detach().to(self.device, copy=True) for other in self._meet(tensor)]
        self._meet()
        return held

    def broadcast(self, tensor: torch.Tensor) -> None:
        first = self._meet(tensor)[0]
        if self.rank != 0:
            tensor.copy_(first)
        self._meet()

    def barrier(self) -> None:
        self._meet()

    def close(self) -> None:
        pass


class Crew:
    """The threads of a gang; each runs what it is told on its device."""

    def __init__(self, devices: list[torch.device], *, on_host: bool = False, wait_s: float | None = None) -> None:
        """wait_s: how long a member may wait for the others; None: as long as they live."""
        self._desk = Desk(len(devices), wait_s=wait_s)
        self.gangs = [Threads(rank, device, self._desk, on_host=on_host) for rank, device in enumerate(devices)]
        self._pool = ThreadPoolExecutor(len(devices), "device")

    def each(self, work: Callable[[Gang], T]) -> list[T]:
        """What `work` returns at each member, run at the same time; the first error that is nobody else's fault."""
        futures = [self._pool.submit(self._one, work, gang) for gang in self.gangs]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise min(errors, key=_collateral)
        return [future.result() for future in futures]

    def _one(self, work: Callable[[Gang], T], gang: Gang) -> T:
        try:
            with on(gang.device):
                return work(gang)
        except NonFiniteError:
            raise  # all find it in the same step, and may still need each other to find its cause
        except BaseException:
            self._desk.gate.abort()
            raise

    def close(self) -> None:
        self._pool.shutdown()


def on(device: torch.device):
    """Makes `device` the current one of this thread."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _collateral(error: BaseException) -> int:
    if isinstance(error, threading.BrokenBarrierError):
        return 2
    return int(isinstance(error, NonFiniteError) and error.elsewhere)
