"""Stage: torch's pipeline stage, for micro-batches of unequal sizes, each a shard with a randomness of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.nn.functional import pad

from shoal.strategies.divided.carving import run
from shoal.strategies.divided.cutting import Cuts
from shoal.strategies.divided.grid import Grid


class Acts(Protocol):
    """What is to be done around the passes of a micro-batch."""

    def shown(self, number: int) -> torch.Tensor:
        """What the model is shown of it; asked of the first stage alone."""
        ...

    def before_forward(self, number: int) -> None: ...
    def after_forward(self, number: int) -> None: ...
    def before_backward(self, number: int) -> None: ...
    def after_backward(self, number: int) -> None: ...


class Slot(nn.Module):
    """A stretch of the model between two tensors of fixed size, of which the first `rows` rows hold images."""

    def __init__(
        self, stretch: nn.Module, cuts: Cuts, grid: Grid, most: int, context: Callable[[], AbstractContextManager]
    ) -> None:
        """most: images of the largest micro-batch."""
        super().__init__()
        self.stretch = stretch
        self._first, self._last, self._most, self._context = grid.stage == 0, grid.speaks, most, context
        channels_last = not self._first and cuts.boundaries[grid.stage - 1].channels_last
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._flattens = not self._last and cuts.boundaries[grid.stage].channels_last
        self.rows = most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self._first:  # a copy, because layers may work in place, and in the layout that it has in a whole model
            x = x[: self.rows].clone(memory_format=self._layout)
        with self._context():
            y = run(self.stretch, x)
        if self._last:
            return y
        y = _Flattened.apply(y) if self._flattens else y.contiguous()  # type: ignore[assignment]
        return y if self.rows == self._most else pad(y, (0, 0) * (y.ndim - 1) + (0, self._most - self.rows))


class _Flattened(torch.autograd.Function):
    """A tensor in the plain layout, which is how tensors travel; its gradient in the layout it would have had."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x.contiguous()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad.contiguous(memory_format=torch.channels_last)


class Stage(PipelineStage):
    """Says at each micro-batch's passes that they are about to begin, and are over."""

    def __init__(self, slot: Slot, cuts: Cuts, grid: Grid, sizes: Callable[[int], int], most: int, acts: Acts) -> None:
        """sizes: images of a micro-batch."""
        row = grid.row
        super().__init__(
            slot,
            grid.stage,
            grid.stages,
            grid.device,
            input_args=_passed(cuts, grid.stage - 1, most),
            output_args=_passed(cuts, grid.stage, most),
            group=row.group,  # type: ignore[attr-defined]
        )
        self._slot, self._sizes, self._acts = slot, sizes, acts

    def forward_one_chunk(self, fwd_chunk_id: int, args: Any, *rest: Any, **more: Any) -> Any:
        self._slot.rows = self._sizes(fwd_chunk_id)
        self._acts.before_forward(fwd_chunk_id)
        if self.is_first:
            args = (self._acts.shown(fwd_chunk_id),)
        output = super().forward_one_chunk(fwd_chunk_id, args, *rest, **more)
        self._acts.after_forward(fwd_chunk_id)
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *rest: Any, **more: Any) -> None:
        self._acts.before_backward(bwd_chunk_id)
        super().backward_one_chunk(bwd_chunk_id, *rest, **more)
        self._acts.after_backward(bwd_chunk_id)


def passed_bytes(cuts: Cuts, boundary: int, most: int) -> int:
    """What goes past a boundary for one micro-batch, in one direction."""
    if not 0 <= boundary < len(cuts.boundaries):
        return 0
    tensor = _passed(cuts, boundary, most)
    return tensor.numel() * tensor.element_size()


def _passed(cuts: Cuts, boundary: int, most: int) -> torch.Tensor:
    """What goes past a boundary, as a tensor without memory; at both ends of the model something that nobody sends."""
    if not 0 <= boundary < len(cuts.boundaries):
        return torch.empty(1, device="meta")
    held = cuts.boundaries[boundary]
    return torch.empty(most, *held.shape, dtype=held.dtype, device="meta", requires_grad=True)


class Draws:
    """Hands the state of the random numbers from stage to stage, so that each goes on drawing where the one before
    stopped: a micro-batch's stream is that of a whole model."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._cuda = grid, grid.device.type == "cuda"
        # States lie in the host's memory, which nccl does not send.
        self._group: Any = dist.new_group(backend="gloo") if self._cuda else grid.group
        self._sent: list[tuple[dist.Work | None, torch.Tensor]] = []

    def take(self) -> None:
        """Goes on where the stage before stopped."""
        state = torch.empty_like(self._state())
        dist.recv(state, self._grid.rank - 1, group=self._group, tag=1)
        if self._cuda:
            torch.cuda.set_rng_state(state, self._grid.device)
        else:
            torch.set_rng_state(state)

    def hand_on(self) -> None:
        """Tells the next stage where this one stopped."""
        self._sent = [(work, state) for work, state in self._sent if work is not None and not work.is_completed()]
        state = self._state()
        self._sent.append((dist.isend(state, self._grid.rank + 1, group=self._group, tag=1), state))

    def _state(self) -> torch.Tensor:
        return torch.cuda.get_rng_state(self._grid.device) if self._cuda else torch.get_rng_state()
