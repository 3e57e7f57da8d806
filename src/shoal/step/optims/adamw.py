from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from shoal.step.optim import Optim, fused

if TYPE_CHECKING:
    import torch


class Adamw(Optim, frozen=True, kw_only=True):
    """Adam with decoupled weight decay (Loshchilov, Hutter 2019; torch.optim.AdamW)."""

    name: Literal["adamw"] = "adamw"
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """Decay of the mean of gradients per step."""
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.999
    """Decay of the mean of squared gradients per step."""
    eps: Annotated[float, Meta(gt=0)] = 1e-8
    """Added to the denominator."""

    def make(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        import torch

        return torch.optim.AdamW(
            self.groups(model),
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=fused(model),
        )
