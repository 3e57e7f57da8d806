"""Finds the first tensor that is not finite, so that a NaN is an answer and not a riddle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from shoal.base.errors import ShoalError
from shoal.data.batches import Batch


class NonFiniteError(ShoalError):
    """A gradient that is not finite. `elsewhere`: its cause lies in another worker's images."""

    def __init__(self, text: str, *, elsewhere: bool) -> None:
        super().__init__(text)
        self.elsewhere = elsewhere


ADVICE = "Lower optim.lr, set optim.clip_norm, or skip such steps with precision.nonfinite=skip"
SKIPPED = "Lower optim.lr or set optim.clip_norm"
SCALED = "Lower precision.loss_scale or optim.lr, or set optim.clip_norm"


def error(step: int, rank: int, culprit: str | None, advice: str = ADVICE, exchange: str = "") -> NonFiniteError:
    """exchange: how the exchange itself may have made finite gradients infinite, if it may."""
    told = culprit or "none on this worker; see the others" + (exchange and f", or else {exchange}")
    return NonFiniteError(
        f"step {step}, rank {rank}: the gradient is not finite; first non-finite tensor: {told}. {advice}",
        elsewhere=culprit is None,
    )


@torch.no_grad()
def first(model: nn.Module, batches: Sequence[Batch], forward: Callable[[Batch], torch.Tensor]) -> str | None:
    """The first non-finite tensor in the order of computing: parameter, buffer, activation, loss, gradient; or None.

    forward: computes the loss sum of one batch; it is run once more, with the step's own randomness.
    """
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not _finite(tensor):
            return f"{'parameter' if isinstance(tensor, nn.Parameter) else 'buffer'} {name}"
    found: list[str] = []

    def watch(name: str) -> Callable:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            if not found and isinstance(output, torch.Tensor) and not _finite(output):
                found.append(f"output of {name} ({type(module).__name__})")

        return hook

    # Leaves only: a container's output is its last leaf's.
    leaves = [(name, module) for name, module in model.named_modules() if not any(True for _ in module.children())]
    handles = [module.register_forward_hook(watch(name)) for name, module in leaves]
    try:
        for batch in batches:
            loss = forward(batch)
            shards = ", ".join(str(shard) for shard, _ in batch.shards)
            if found:
                return f"{found[0]} in shard {shards}"
            if not _finite(loss):
                return f"the loss of shard {shards}"
    finally:
        for handle in handles:
            handle.remove()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not _finite(parameter.grad):
            return f"gradient of {name} (activations and loss are finite)"
    return None


def _finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
