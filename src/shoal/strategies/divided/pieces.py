"""Pieces: rows of every tensor at every worker, and an optimizer that steps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shoal.base.errors import UsageError
from shoal.kvstore.updater import describe, elementwise
from shoal.step.gang import Gang
from shoal.strategies.replicated.average import local
from shoal.strategies.replicated.owned import Partial


def piece_of(whole: torch.Tensor, gang: Gang) -> torch.Tensor:
    """This worker's rows, as FSDP hands them out: equally many to each but the last, who may have none."""
    rows = -(-len(whole) // gang.num_ranks)
    return whole[gang.rank * rows : (gang.rank + 1) * rows].contiguous()


def whole_of(piece: torch.Tensor, shape: Sequence[int], gang: Gang) -> torch.Tensor:
    """The tensor of all workers' pieces. A collective."""
    rows = -(-shape[0] // gang.num_ranks)
    padded = piece.new_zeros(rows, *shape[1:])
    padded[: len(piece)] = piece
    return torch.cat(gang.gather(padded))[: shape[0]]


class Piecewise(Partial):
    """An optimizer over this worker's pieces. Its state, as others see it, is of whole tensors."""

    def __init__(self, optimizer: torch.optim.Optimizer, cut: dict[int, torch.Tensor], gang: Gang) -> None:
        """optimizer: of whole tensors, without state. cut: what became of each tensor, by its id. UsageError: an
        optimizer that needs whole tensors."""
        whole = [held for group in optimizer.param_groups for held in group["params"]]
        described = describe(optimizer, whole)
        if not elementwise(described):
            raise UsageError(
                f"strategy fsdp: optimizer {described['name']} needs whole tensors, and workers hold pieces; "
                "use one that steps number by number (sgd, adamw, …), or strategy=ddp:shard_optimizer=true"
            )
        self._inner, self._gang = optimizer, gang
        self._shapes = [tuple(held.shape) for held in whole]
        self._cut = [cut[id(held)] for held in whole]
        self._pieces = [torch.nn.Parameter(local(held.detach())) for held in self._cut]
        of_whole = {id(held): piece for held, piece in zip(whole, self._pieces, strict=True)}
        for group in optimizer.param_groups:
            group["params"] = [of_whole[id(held)] for held in group["params"]]

    def step(self) -> None:
        for held, piece in zip(self._cut, self._pieces, strict=True):
            piece.grad = None if held.grad is None else local(held.grad)
        self._inner.step()

    def state_dict(self) -> dict[str, Any]:
        """As the optimizer's own, of whole tensors. A collective."""
        state = self._inner.state_dict()
        return {**state, "state": {number: self._whole(number, held) for number, held in state["state"].items()}}

    def _whole(self, number: int, held: dict[str, Any]) -> dict[str, Any]:
        piece = self._pieces[number]
        return {
            key: whole_of(value, self._shapes[number], self._gang)
            if isinstance(value, torch.Tensor) and value.shape == piece.shape
            else value
            for key, value in held.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        cut = {
            number: {
                key: piece_of(value, self._gang)
                if isinstance(value, torch.Tensor) and tuple(value.shape) == self._shapes[int(number)]
                else value
                for key, value in held.items()
            }
            for number, held in state["state"].items()
        }
        self._inner.load_state_dict({**state, "state": cut})
