"""Exchange of a grid's column: those who hold the same stage add its gradients; norm and asks are of the whole grid."""

from __future__ import annotations

import torch

from shoal.data.batches import Batch
from shoal.step.gang import Gang
from shoal.strategies.divided.grid import Grid
from shoal.strategies.replicated.buffers import Buffers
from shoal.strategies.replicated.exchange import Exchange, Summed, Tree, asks_row, largest_ask


class Remembered(Buffers):
    """Buffers of micro-batches whose forward passes run ahead: what each made of them is kept until it is asked for."""

    def undo(self) -> None:
        # Backward passes to come have these tensors in their graphs, though none reads what BatchNorm kept for later.
        self._floats.data.copy_(self._start)
        self._integers.data.copy_(self._integers_start)

    def keep_leaf(self, batch: Batch) -> None:
        """After a batch's forward pass."""
        self._leaves = getattr(self, "_leaves", {})
        self._leaves[batch.first_shard] = super().leaf(batch)

    def leaf(self, batch: Batch) -> torch.Tensor:
        return self._leaves.pop(batch.first_shard)


class ColumnSum(Summed):
    """Sums in any order."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid.column)
        self._grid = grid

    def finish(self, ask: int) -> int:
        return _largest(super().finish(ask), self._grid.row)

    def norm(self) -> torch.Tensor:
        square = self._flat.double().square().sum()
        self._grid.row.sum(square)
        return square.sqrt().to(self._flat.dtype)


class ColumnTree(Tree):
    """Sums in the shards' one order; the same bits as without stages."""

    def __init__(self, grid: Grid, shards: int, places: list[int], count: int) -> None:
        """places: of this stage's trained tensors among the `count` of the whole model, in the stage's order."""
        super().__init__(grid.column, shards)
        self._grid, self._places, self._count = grid, places, count

    def finish(self, ask: int) -> int:
        return _largest(super().finish(ask), self._grid.row)

    def norm(self) -> torch.Tensor:
        squares = torch.zeros(self._count, dtype=torch.float64, device=self._flat.device)
        own = [piece.double().square().sum() for piece in self._flat.split(self._sizes)]
        squares[self._places] = torch.stack(own)
        self._grid.row.sum(squares)  # every place is filled by one stage: nothing is rounded
        return squares.cumsum(0)[-1].sqrt().to(self._flat.dtype)


ColumnExchange = ColumnSum | ColumnTree


def _largest(ask: int, row: Gang) -> int:
    asks = asks_row(ask, row.device)
    row.sum(asks)
    return largest_ask(asks)


def exchange_for(grid: Grid, shards: int | None, places: list[int], count: int) -> Exchange:
    """shards: where the order of additions is theirs."""
    return ColumnSum(grid) if shards is None else ColumnTree(grid, shards, places, count)
