from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from shoal.step.optim import Optim

if TYPE_CHECKING:
    import torch

Momentum = Annotated[float, Meta(ge=0, lt=1)]


class Muon(Optim, frozen=True, kw_only=True):
    """Orthogonal steps for kernels and inner matrices (Jordan 2024), Nesterov's SGD for the last matrix, biases and
    norms. Fewer epochs to the same accuracy than SGD, for some 5 % more time per step on a small net."""

    name: Literal["muon"] = "muon"
    momentum: Momentum = 0.95
    """Part of the last step that is kept for kernels, 0 to 1."""
    fixed_norm: bool = False
    """Keep every kernel's 2-norm at the square root of its outputs, instead of decaying it: right where a norm layer
    follows each, to which the kernel's length means nothing. lr is then the angle of a step, in radians."""
    sgd_lr: Annotated[float, Meta(ge=0)] = 0.05
    """Peak learning rate of the parameters that SGD trains."""
    sgd_momentum: Momentum = 0.9
    """Momentum of the parameters that SGD trains."""

    def faults(self) -> list[tuple[str, str]]:
        return [("lr", "expected more than 0: sgd_lr is scaled with it")] if self.lr == 0 else []

    def make(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        from shoal.step.orthogonal import OrthogonalSgd

        last = [p for p in model.parameters() if p.ndim > 1][-1:]
        scale = self.sgd_lr / self.lr
        orthogonal = {"orthogonal": True, "fixed_norm": self.fixed_norm, "lr": self.lr, "momentum": self.momentum}
        plain = {"lr": self.sgd_lr, "lr_scale": scale, "momentum": self.sgd_momentum}
        groups: list[dict[str, Any]] = []
        for group in self.groups(model):
            kernels = [p for p in group["params"] if p.ndim > 1 and p is not last[0]]
            others = [p for p in group["params"] if p.ndim <= 1 or p is last[0]]
            decay = {"weight_decay": group.get("weight_decay", self.weight_decay)}
            groups += [{**decay, **kind, "params": held} for kind, held in ((orthogonal, kernels), (plain, others))]
        return OrthogonalSgd([group for group in groups if group["params"]], lr=self.lr)
