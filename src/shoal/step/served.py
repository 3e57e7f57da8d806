"""Served: a gang whose workers know only their parameter servers, so that it outlives the death of a worker."""

from __future__ import annotations

import torch

from shoal.kvstore.client import Client
from shoal.step.gang import Gang, Pending


class Served(Gang):
    """Sums travel as float64 or int64 through the servers' `side`; what is copied travels as its bits."""

    def __init__(self, client: Client, rank: int, num_ranks: int, device: torch.device, *, num_servers: int) -> None:
        self.client = client
        self.began = False
        """The servers have held this job's parameters before; what they hold now is not what to begin with."""
        self.rank, self.num_ranks, self.device, self.num_servers = rank, num_ranks, device, num_servers

    @property
    def live(self) -> list[int]:
        """Those who were there when this was last found out."""
        return list(self.client.live)

    @property
    def place(self) -> tuple[int, int]:
        return self.live.index(self.rank), len(self.live)

    def roll_call(self, words: list[int]) -> list[list[int]]:
        """Says some numbers and hears everybody's who is still there."""
        told = self._everybodys(torch.tensor([1, *words]))
        self.client.live = [rank for rank, row in enumerate(told) if row[0]]
        return [told[rank][1:].tolist() for rank in self.live]

    def renew(self) -> None:
        self.roll_call([])

    def sum(self, tensor: torch.Tensor) -> None:
        kind = torch.float64 if tensor.is_floating_point() else torch.int64
        tensor.copy_(self.client.side(tensor.detach().to("cpu", kind, copy=True).reshape(-1)).view(tensor.shape))

    def sum_later(self, tensor: torch.Tensor) -> Pending:
        self.sum(tensor)
        return Pending()

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        told = self._everybodys(tensor)
        return [told[rank] for rank in self.live]

    def _everybodys(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """By rank; zeros of those who are gone."""
        own = _words(tensor)
        slots = torch.zeros(self.num_ranks, len(own), dtype=torch.int64)
        slots[self.rank] = own
        return [_unpacked(row, tensor) for row in self.client.side(slots.reshape(-1)).view(slots.shape)]

    def broadcast(self, tensor: torch.Tensor) -> None:
        own = _words(tensor)
        tensor.copy_(_unpacked(self.client.side(own if self.leads else torch.zeros_like(own)), tensor))

    def barrier(self) -> None:
        self.client.barrier()

    def close(self) -> None:
        self.client.close()


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bits as int64: adding zeros leaves them alone."""
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    held = torch.zeros(-(-len(raw) // 8) * 8, dtype=torch.uint8)
    held[: len(raw)] = raw
    return held.view(torch.int64)


def _unpacked(words: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    raw = words.contiguous().view(torch.uint8)[: like.numel() * like.element_size()]
    return raw.clone().view(like.dtype).view(like.shape).to(like.device)
