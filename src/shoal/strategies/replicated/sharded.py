"""Sharded: an optimizer whose state is shared out among the workers (ZeRO's first stage)."""

from __future__ import annotations

import torch

from shoal.step.gang import Gang
from shoal.strategies.replicated.owned import Owned, check_apart


class Sharded(Owned):
    """Each worker steps whole tensors of its own, about as many numbers as every other, and hands them to all. The same
    bits as without."""

    def __init__(self, optimizer: torch.optim.Optimizer, gang: Gang) -> None:
        """optimizer: of all parameters, without state. UsageError: one whose tensors depend on each other."""
        check_apart(optimizer, what := "strategy.shard_optimizer")
        self._parameters = [held for group in optimizer.param_groups for held in group["params"]]
        self._owner = _shared_out([held.numel() for held in self._parameters], gang.num_ranks)
        self._of_rank = [
            [held for held, owner in zip(self._parameters, self._owner, strict=True) if owner == rank]
            for rank in range(gang.num_ranks)
        ]
        self._size = max(sum(held.numel() for held in mine) for mine in self._of_rank)
        self.bytes_sent = 0
        super().__init__(optimizer, {id(held) for held in self._of_rank[gang.rank]}, gang, what)

    @torch.no_grad()
    def step(self) -> None:
        """A collective."""
        super().step()
        like = self._parameters[0]
        mine = torch.zeros(self._size, dtype=like.dtype, device=like.device)
        low = 0
        for held in self._of_rank[self._gang.rank]:
            mine[low : low + held.numel()] = held.reshape(-1)
            low += held.numel()
        self.bytes_sent += (self._gang.num_ranks - 1) * mine.numel() * mine.element_size()
        for rank, flat in enumerate(self._gang.gather(mine)):
            low = 0
            for held in self._of_rank[rank] if rank != self._gang.rank else ():
                held.copy_(flat[low : low + held.numel()].view(held.shape))
                low += held.numel()


def _shared_out(sizes: list[int], parts: int) -> list[int]:
    """The part that each item belongs to: the largest first, to the part that has least."""
    totals, owner = [0] * parts, [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        owner[number] = totals.index(min(totals))
        totals[owner[number]] += sizes[number]
    return owner
