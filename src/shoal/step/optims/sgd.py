from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from shoal.step.optim import Optim, fused

if TYPE_CHECKING:
    import torch


class Sgd(Optim, frozen=True, kw_only=True):
    """Stochastic gradient descent with momentum, plain or Nesterov's (torch.optim.SGD)."""

    name: Literal["sgd"] = "sgd"
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """Part of the last step that is kept, 0 to 1."""
    nesterov: bool = False
    """Look ahead along the momentum."""

    def faults(self) -> list[tuple[str, str]]:
        return [("nesterov", "needs a momentum above 0")] if self.nesterov and not self.momentum else []

    def make(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        import torch

        return torch.optim.SGD(
            self.groups(model),
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            fused=fused(model),
        )
