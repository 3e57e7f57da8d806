"""BatchNorm statistics as the recipe says: of each shard (torch's own), of the whole batch (sync) or fixed (frozen)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.base.errors import ShoalError
from shoal.step.gang import Gang
from shoal.step.stopwatch import COMPUTE, EXCHANGE


def norms(model: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers of a model, in its order."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def freeze(model: nn.Module) -> None:
    """Keeps BatchNorm on its running statistics; call after every `model.train()`."""
    for module in norms(model):
        module.eval()


def synchronise(model: nn.Module, gang: Gang) -> None:
    """Makes BatchNorm layers take their statistics over all workers' images, in place; parameter names stay.

    torch's SyncBatchNorm refuses CPU tensors and divides unevenly filled workers equally; this one counts pixels.
    """
    for module in norms(model):
        module.__class__ = type(f"Sync{type(module).__name__}", (_Synchronised, type(module)), {})
        module._gang = gang  # type: ignore[assignment]


class _Synchronised:
    """Mixed into a BatchNorm class in front of its own forward."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(x)  # type: ignore[misc]
        channels, given = x.shape[1], x.dtype
        x = x.to(torch.promote_types(given, torch.float32))  # bfloat16 can neither sum nor count that far
        shape = (1, channels, *(1,) * (x.ndim - 2))
        dims = [0, *range(2, x.ndim)]
        first = torch.cat([x.sum(dims), x.new_full((1,), x.numel() / channels)])
        first = _Sum.apply(first, self._gang)
        count = first[-1].detach()
        if x.numel() <= channels and count <= 1:  # the count of all workers is read only where it may be so small
            raise ShoalError(
                f"norm: sync: BatchNorm needs more than one value per channel to train on, but a batch of all workers "
                f"has {int(count)}; use a larger batch, drop_last=true, or norm=frozen"
            )
        mean = first[:-1] / count
        centred = x - mean.view(shape)
        variance = _Sum.apply(centred.square().sum(dims), self._gang) / count
        self._remember(mean.detach(), variance.detach(), count)
        scale = (variance + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        y = centred * scale.view(shape)
        if self.bias is not None:
            y = y + self.bias.view(shape)
        y = y.to(given)
        for after in ("drop", "act"):  # timm's BatchNorm layers end with these
            if isinstance(getattr(self, after, None), nn.Module):
                y = getattr(self, after)(y)
        return y

    @torch.no_grad()
    def _remember(self: Any, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        if not self.track_running_stats:
            return
        self.num_batches_tracked += 1
        momentum = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var.dtype), momentum)


class _Sum(torch.autograd.Function):
    """A sum over workers that gradients flow through: each worker's input takes part in every worker's loss."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gang: Gang) -> torch.Tensor:  # type: ignore[override]
        ctx.gang = gang
        return _summed(x, gang)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return _summed(grad, ctx.gang), None


def _summed(x: torch.Tensor, gang: Gang) -> torch.Tensor:
    gang.watch.to(EXCHANGE)
    x = x.clone()
    gang.sum(x)
    gang.watch.to(COMPUTE)
    return x
