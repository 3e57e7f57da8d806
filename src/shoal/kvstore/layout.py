"""Layout: a model's parameters as one flat tensor, how it is cut over servers, and what all agree on before a round."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import torch

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tensors that lie one after another in a flat tensor, each in its own memory order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    """Of each tensor; dense ones only (contiguous, channels last)."""
    dtype: Literal["float32", "float64"] = "float32"
    whole: bool = False
    """Servers hold whole tensors: for layer-wise optimizers, and when deterministic, where a kernel's vector ends must
    lie as they do in one process. Else the flat tensor is cut evenly, in the middle of tensors."""

    @staticmethod
    def of(named: Sequence[tuple[str, torch.Tensor]], *, whole: bool = False) -> Layout:
        """Of a model's trainable parameters, in the order of the flat tensor."""
        tensors = [tensor for _, tensor in named]
        kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors}
        if len(kinds) != 1 or not kinds <= DTYPES.keys():
            raise ValueError(f"parameters of types {', '.join(sorted(kinds))}: servers hold float32, or float64")
        dense = [tensor if _is_dense(tensor) else torch.empty(tensor.shape, device="meta") for tensor in tensors]
        return Layout(
            tuple(name for name, _ in named),
            tuple(tuple(tensor.shape) for tensor in tensors),
            tuple(tuple(tensor.stride()) for tensor in dense),
            kinds.pop(),  # type: ignore[arg-type]
            whole,
        )

    @property
    def kind(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def starts(self) -> list[int]:
        """Where each tensor begins in the flat one."""
        starts, low = [], 0
        for size in self.sizes:
            starts.append(low)
            low += size
        return starts

    def view(self, flat: torch.Tensor, number: int) -> torch.Tensor:
        """Tensor `number` as a view of `flat`."""
        return torch.as_strided(
            flat, self.shapes[number], self.strides[number], flat.storage_offset() + self.starts[number]
        )

    def cut(self, servers: int) -> list[tuple[int, int]]:
        """[low, high) of the flat tensor for each server, one after another; empty where there is nothing left."""
        even = [round(self.size * server / servers) for server in range(servers + 1)]
        if self.whole:  # at the tensor's edge that is nearest to the even cut
            edges = [*self.starts, self.size]
            even = [min(edges, key=lambda edge, want=want: abs(edge - want)) for want in even]
        return list(itertools.pairwise(even))


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What holds for a table of parameters; rank 0's is compared with everybody's."""

    mode: Literal["sync", "async"] = "sync"
    on_dead: Literal["stop", "continue"] = "stop"
    """What a dead worker means to the others of a synchronous round: its end, or the same batch again without it."""
    shards: int | None = None
    """Deterministic: of the global batch; pushes then name their node of the tree of additions."""
    damped_beyond: int = 0
    """async: pushes of a batch, which are not stale to one another. The rate of a push is divided by its staleness + 1
    in whole batches, where they are more than one. 0: never divided. After Zhang, Gupta, Lian, Liu 2016
    ("Staleness-aware async-SGD for distributed deep learning", IJCAI)."""
    compression: dict[str, Any] = {}
    """Of pushes: {} or {"type": "none" | "fp16" | "2bit", "threshold": 0.5}."""


@dataclass(frozen=True)
class Limits:
    """Seconds after which a wait ends in an error that names who waits for whom."""

    start_s: float = 600.0
    """Until every worker has come for the first time; until a server listens."""
    step_s: float = 300.0
    """Until every connected worker has finished a round."""
    silence_s: float = 30.0
    """Until a network that was cut counts as cut."""
    return_s: float = 60.0
    """Until a server that went away is back."""


@dataclass(frozen=True)
class Committed:
    """What became of a step; in sync mode equal on every worker."""

    applied: bool
    """False: dropped everywhere, for a gradient was not finite; async, with a finite norm: another worker did the same
    position, after a server's restart."""
    redo: bool = False
    """A worker died in this round (on_dead: continue): nothing was applied, and `live` compute the same batch again."""
    asked: int = 0
    """The largest ask of any worker; of this worker in async mode."""
    norm: float = 0.0
    """Of the whole gradient before clipping."""
    version: int = 0
    """Steps applied so far, this one included."""
    staleness: int = 0
    """async: pushes of others that were applied between this worker's last pull and this push."""
    live: tuple[int, ...] = ()
    """Workers that the next round waits for."""
