"""Sharded: an optimizer whose state is shared out among the workers (ZeRO's first stage)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from shoal.base.errors import UsageError
from shoal.step.gang import Gang


class Sharded:
    """Each worker steps whole tensors of its own, about as many numbers as every other, and hands them to all. The same
    bits as without, and checkpoints that do not know it."""

    def __init__(self, optimizer: torch.optim.Optimizer, gang: Gang) -> None:
        """optimizer: of all parameters, without state. UsageError: one whose tensors depend on each other."""
        if any(group.get("max_grad_norm") for group in optimizer.param_groups):
            raise UsageError("strategy.shard_optimizer: max_grad_norm needs the whole gradient; use optim.clip_norm")
        self._inner, self._gang = optimizer, gang
        self._all = [list(group["params"]) for group in optimizer.param_groups]
        self._parameters = [held for group in self._all for held in group]
        self._owner = _shared_out([held.numel() for held in self._parameters], gang.num_ranks)
        self._own = {id(held) for held, owner in zip(self._parameters, self._owner, strict=True) if owner == gang.rank}
        self._of_rank = [
            [held for held, owner in zip(self._parameters, self._owner, strict=True) if owner == rank]
            for rank in range(gang.num_ranks)
        ]
        self._size = max(sum(held.numel() for held in mine) for mine in self._of_rank)
        self.bytes_sent = 0
        self._part()

    def _part(self) -> None:
        """Leaves this worker's tensors to the optimizer."""
        for group, held in zip(self._inner.param_groups, self._all, strict=True):
            group["params"] = [parameter for parameter in held if id(parameter) in self._own]

    @contextmanager
    def _whole(self) -> Iterator[None]:
        for group, held in zip(self._inner.param_groups, self._all, strict=True):
            group["params"] = held
        try:
            yield
        finally:
            self._part()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._inner.param_groups

    @property
    def defaults(self) -> dict[str, Any]:
        return self._inner.defaults

    @property
    def state(self) -> dict[torch.Tensor, dict[str, Any]]:
        """Of this worker's tensors."""
        return self._inner.state  # type: ignore[return-value]

    @torch.no_grad()
    def step(self) -> None:
        """A collective."""
        self._inner.step()
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

    def state_dict(self) -> dict[str, Any]:
        """As the optimizer's own, of all tensors. A collective."""
        numbers = {id(held): number for number, held in enumerate(self._parameters)}
        own = {numbers[id(held)]: state for held, state in self._inner.state.items()}
        file = io.BytesIO()
        torch.save(own, file)
        found: dict[int, dict[str, Any]] = {}
        for told in self._gang.gather_bytes(file.getvalue()):
            found |= torch.load(io.BytesIO(told), weights_only=True, map_location=self._gang.device)
        with self._whole():
            groups = self._inner.state_dict()["param_groups"]
        return {"state": dict(sorted(found.items())), "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with self._whole():
            self._inner.load_state_dict(state)
            for held in [held for held in self._inner.state if id(held) not in self._own]:
                del self._inner.state[held]


def _shared_out(sizes: list[int], parts: int) -> list[int]:
    """The part that each item belongs to: the largest first, to the part that has least."""
    totals, owner = [0] * parts, [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        owner[number] = totals.index(min(totals))
        totals[owner[number]] += sizes[number]
    return owner
