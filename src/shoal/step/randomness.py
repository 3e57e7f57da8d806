"""Dropout and drop-path whose randomness belongs to a shard, not to the worker that computes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shoal.data.batches import Batch
from shoal.data.order import key


def seed_for(batch: Batch, seed: int) -> None:
    """Starts torch's generators anew for the (first) shard of a batch."""
    number, device = key(seed, batch.step, batch.first_shard) >> 1, batch.images.device
    # torch.manual_seed would seed every kind of device, at a hundred times the cost.
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


class ShardStreams:
    """Random numbers for a batch of several shards, each drawn from its own stream (as `norm: sync` needs)."""

    def __init__(self, model: nn.Module) -> None:
        self._pieces: list[tuple[torch.Generator, int]] = []
        for module in model.modules():
            kind = type(module)
            if isinstance(module, nn.Dropout) or kind.__name__ == "DropPath":
                module.__class__ = type(f"Sharded{kind.__name__}", (_Sharded, kind), {})  # type: ignore[assignment]
                module._streams = self  # type: ignore[assignment]

    def start(self, batch: Batch, seed: int) -> None:
        """Call before the forward pass of each batch."""
        seed_for(batch, seed)  # for layers that are not known here
        device = batch.images.device
        self._pieces = []
        for shard, size in batch.shards:
            stream = torch.Generator(device)
            stream.manual_seed(key(seed, batch.step, shard) >> 1)
            self._pieces.append((stream, size))

    def keep(self, shape: tuple[int, ...], like: torch.Tensor, probability: float) -> torch.Tensor:
        """1 where a value is kept, [B, *shape]; B is that of the batch started last."""
        if not self._pieces:
            return like.new_ones((0, *shape))
        return torch.cat(
            [
                torch.empty((size, *shape), dtype=like.dtype, device=like.device).bernoulli_(
                    probability, generator=stream
                )
                for stream, size in self._pieces
            ]
        )


class _Sharded:
    """Mixed into nn.Dropout and timm's DropPath in front of their own forward."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        whole = isinstance(self, nn.Dropout)
        drop = self.p if whole else (self.drop_prob or 0.0)
        if not self.training or drop == 0.0:
            return x
        shape = tuple(x.shape[1:]) if whole else (1,) * (x.ndim - 1)
        kept = self._streams.keep(shape, x, 1 - drop)
        if not whole and not self.scale_by_keep:
            return x * kept
        return x * kept / (1 - drop) if drop < 1 else x * kept
