"""Running statistics that are equal on all workers after every step.

Each step sets a buffer from its value at the step's start and the image-weighted mean of what the shards made of it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from shoal.data.batches import Batch
from shoal.step.gang import Gang


class Buffers:
    """A model's buffers as two flat tensors (floating point and integer), which the model's own are views of."""

    def __init__(self, model: nn.Module, *, average: bool) -> None:
        """average: False leaves the buffers to the model, but for `undo` (they are equal everywhere by other means)."""
        self.average = average
        device = next(model.parameters()).device
        held = _buffers(model)
        floating = next(model.parameters()).dtype  # buffers of other types hold constants, not statistics
        self._floats = _flatten(held, floating, device)
        self._integers = _flatten(held, torch.int64, device)
        self._start = self._floats.clone()
        self._integers_start = self._integers.clone()
        self._first = True

    @property
    def size(self) -> int:
        """Numbers that `leaf` and `take` handle."""
        return len(self._floats) + len(self._integers) if self.average else 0

    def begin_shard(self) -> None:
        """Before each forward pass: every shard starts from the step's start."""
        if self._first:
            self._remember()
        elif self.average:
            self.undo()
        self._first = False

    def leaf(self, batch: Batch) -> torch.Tensor:
        """float64 [size]: this shard's part of the new buffers, to be added over all shards."""
        if not self.average:
            return torch.zeros(0, dtype=torch.float64, device=self._floats.device)
        share = sum(size for _, size in batch.shards) / batch.count_global
        floats = self._floats.double() * share
        # Integers (counts of batches) are equal in all shards: the first shard speaks for all.
        first = batch.first_shard == 0
        integers = self._integers.double() if first else torch.zeros_like(self._integers, dtype=torch.float64)
        return torch.cat([floats, integers])

    def take(self, summed: torch.Tensor) -> None:
        """Ends the step with the sum of all leaves."""
        if self._first:  # no images of this step were here; the start is what stands now
            self._remember()
        if self.average:
            self._floats.copy_(summed[: len(self._floats)])
            self._integers.copy_(summed[len(self._floats) :].round())
        self._first = True

    def keep(self, part: float = 1.0) -> None:
        """Ends the step with what this worker's own batch made of them. part: how far they go there."""
        if part != 1.0 and self.average:
            moved = self._floats != self._start  # others hold constants, maybe infinite ones
            self._floats.copy_(torch.where(moved, torch.lerp(self._start, self._floats, part), self._floats))
        self._first = True

    def take_own(self, mean: torch.Tensor) -> None:
        """Ends the step with the mean over this worker's own images; what counts batches has counted this one."""
        if self.average:
            self._floats.copy_(mean[: len(self._floats)])
        self._first = True

    def agree(self, gang: Gang, weight: float) -> None:
        """Sets them to the mean over workers who went their own ways; weight: this worker's part in it."""
        if not self.average:
            return
        values = torch.cat([self._floats.double(), self._integers.double()]) * weight
        side = torch.cat([values, values.new_full((1,), weight)])
        gang.sum(side)
        if side[-1] > 0:
            self._first = True
            self.take(side[:-1] / side[-1])

    def undo(self) -> None:
        """Back to the start of the step, also after `take`, as if it had not been."""
        self._floats.copy_(self._start)
        self._integers.copy_(self._integers_start)

    def _remember(self) -> None:
        self._start.copy_(self._floats)
        self._integers_start.copy_(self._integers)


class _Held(NamedTuple):
    buffer: torch.Tensor
    owners: list[tuple[nn.Module, str]]
    """Modules and the names they have for it; several may share one."""


def _buffers(model: nn.Module) -> list[_Held]:
    """Each buffer once, in the model's order."""
    found: dict[int, _Held] = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.numel():
                found.setdefault(id(buffer), _Held(buffer, [])).owners.append((module, name))
    return [*found.values()]


def _flatten(held: list[_Held], kind: torch.dtype, device: torch.device) -> torch.Tensor:
    """The buffers of one type as one tensor, in whose pieces their modules keep them from now on."""
    held = [item for item in held if item.buffer.dtype == kind]
    flat = torch.cat([item.buffer.detach().reshape(-1) for item in held] or [torch.zeros(0, dtype=kind, device=device)])
    low = 0
    for buffer, owners in held:
        piece = flat[low : low + buffer.numel()].view(buffer.shape)
        for module, name in owners:
            module._buffers[name] = piece
        low += buffer.numel()
    return flat
