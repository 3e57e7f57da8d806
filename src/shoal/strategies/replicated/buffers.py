"""Running statistics that are equal on all workers after every step.

Each step sets a buffer from its value at the step's start and the image-weighted mean of what the shards made of it.
"""

from __future__ import annotations

import torch
from torch import nn

from shoal.data.batches import Batch


class Buffers:
    """A model's buffers as two flat tensors (floating point and integer), which the model's own are views of."""

    def __init__(self, model: nn.Module, *, average: bool) -> None:
        """average: False leaves the buffers to the model (they are equal everywhere by other means)."""
        self.average = average
        device = next(model.parameters()).device
        held = _buffers(model) if average else []
        floating = next(model.parameters()).dtype  # buffers of other types hold constants, not statistics
        self._floats = _flatten(held, floating, device)
        self._integers = _flatten(held, torch.int64, device)
        self._start = self._floats.clone()
        self._integers_start = self._integers.clone()
        self._first = True

    @property
    def size(self) -> int:
        """Numbers that `leaf` and `take` handle."""
        return len(self._floats) + len(self._integers)

    def begin_shard(self) -> None:
        """Before each forward pass: every shard starts from the step's start."""
        if not self.average:
            return
        if self._first:
            self._start.copy_(self._floats)
            self._integers_start.copy_(self._integers)
        else:
            self._floats.copy_(self._start)
            self._integers.copy_(self._integers_start)
        self._first = False

    def leaf(self, batch: Batch) -> torch.Tensor:
        """float64 [size]: this shard's part of the new buffers, to be added over all shards."""
        share = sum(size for _, size in batch.shards) / batch.count_global
        floats = self._floats.double() * share
        # Integers (counts of batches) are equal in all shards: the first shard speaks for all.
        first = batch.shards[0][0] == 0
        integers = self._integers.double() if first else torch.zeros_like(self._integers, dtype=torch.float64)
        return torch.cat([floats, integers])

    def take(self, summed: torch.Tensor) -> None:
        """Ends the step with the sum of all leaves."""
        if self.average:
            if self._first:  # no images of this step were here; the start is what stands now
                self._start.copy_(self._floats)
                self._integers_start.copy_(self._integers)
            self._floats.copy_(summed[: len(self._floats)])
            self._integers.copy_(summed[len(self._floats) :].round())
        self._first = True

    def undo(self) -> None:
        """Back to the start of the step that `take` has just ended, as if it had not been."""
        if self.average:
            self._floats.copy_(self._start)
            self._integers.copy_(self._integers_start)


def _buffers(model: nn.Module) -> list[tuple[nn.Module, str, torch.Tensor]]:
    """(owner, name, buffer), each tensor once."""
    seen: set[int] = set()
    found = []
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.numel() and id(buffer) not in seen:
                seen.add(id(buffer))
                found.append((module, name, buffer))
    return found


def _flatten(held: list[tuple[nn.Module, str, torch.Tensor]], kind: torch.dtype, device: torch.device) -> torch.Tensor:
    """The buffers of one type as one tensor, in whose pieces their modules keep them from now on."""
    held = [item for item in held if item[2].dtype == kind]
    flat = torch.cat(
        [buffer.detach().reshape(-1) for _, _, buffer in held] or [torch.zeros(0, dtype=kind, device=device)]
    )
    low = 0
    for module, name, buffer in held:
        module._buffers[name] = flat[low : low + buffer.numel()].view(buffer.shape)
        low += buffer.numel()
    return flat
