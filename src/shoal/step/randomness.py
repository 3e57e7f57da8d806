"""Dropout and drop-path whose randomness belongs to a shard, not to the worker that computes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from shoal.base.errors import ShoalError
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
    """Random numbers for a batch of several shards, each drawn from its own stream (as `norm: sync` needs).

    Covers dropout in every form that calls torch.nn.functional.dropout, and timm's DropPath.
    """

    def __init__(self, model: nn.Module) -> None:
        self._pieces: list[tuple[torch.Generator, int]] = []
        for module in model.modules():
            kind = type(module)
            if kind.__name__ == "DropPath":
                module.__class__ = type(f"Sharded{kind.__name__}", (_ShardedDropPath, kind), {})  # type: ignore[assignment]
                module._streams = self  # type: ignore[assignment]

    def of(self, batch: Batch, seed: int) -> TorchFunctionMode:
        """Around the forward pass of a batch."""
        seed_for(batch, seed)  # for whatever else draws
        device = batch.images.device
        self._pieces = []
        for shard, size in batch.shards:
            stream = torch.Generator(device)
            stream.manual_seed(key(seed, batch.step, shard) >> 1)
            self._pieces.append((stream, size))
        return _ShardedDropout(self)

    def keep(self, shape: tuple[int, ...], like: torch.Tensor, probability: float) -> torch.Tensor:
        """1 where a value is kept, [rows of like, *shape]. Rows are images, or equally many pieces of each in order."""
        images = sum(size for _, size in self._pieces)
        if not images:
            return like.new_ones((len(like), *shape))
        each, rest = divmod(len(like), images)
        if rest:
            raise ShoalError(f"norm: sync: dropout over {len(like)} rows of {images} images cannot be told by shard")
        made = {"dtype": like.dtype, "device": like.device}
        return torch.cat(
            [
                torch.empty((size * each, *shape), **made).bernoulli_(probability, generator=stream)
                for stream, size in self._pieces
            ]
        )


class _ShardedDropout(TorchFunctionMode):
    """Answers torch.nn.functional.dropout, whoever calls it, by the shards' streams."""

    def __init__(self, streams: ShardStreams) -> None:
        super().__init__()
        self._streams = streams

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.dropout:
            return self._dropout(*args, **kwargs)
        if func is functional.scaled_dot_product_attention and (kwargs.get("dropout_p") or (args[4:5] or (0,))[0]):
            raise ShoalError("norm: sync: dropout inside attention cannot be told by shard; set it to 0, or norm=shard")
        return func(*args, **kwargs)

    def _dropout(self, x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not training or p == 0.0:
            return x
        kept = self._streams.keep(tuple(x.shape[1:]), x, 1 - p)
        return x * kept / (1 - p) if p < 1 else x * kept


class _ShardedDropPath:
    """Mixed into timm's DropPath in front of its own forward."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        drop = self.drop_prob or 0.0
        if not self.training or drop == 0.0:
            return x
        kept = self._streams.keep((1,) * (x.ndim - 1), x, 1 - drop)
        return x * kept / (1 - drop) if self.scale_by_keep and drop < 1 else x * kept
