"""OrthogonalSgd: steps whose directions are orthogonal matrices for kernels, and plain gradients for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from shoal.kvstore.updater import register

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Jordan's coefficients: singular values from 1e-3 to 1 come to 0.7 … 1.2 within five rounds."""
_ROUNDS = 5


def orthogonalised(matrix: torch.Tensor) -> torch.Tensor:
    """[m, n] with all its singular values near 1, by Newton-Schulz iterations in the matrix's own format."""
    a, b, c = _QUINTIC
    upright = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if upright else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(_ROUNDS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.T if upright else x


@register
class OrthogonalSgd(torch.optim.Optimizer):
    """Muon (Jordan 2024, kellerjordan.github.io/posts/muon) for groups with `orthogonal`, else Nesterov's SGD.

    torch's and timm's Muon compute in bfloat16, which CPUs without instructions for it only imitate; this one keeps
    the parameters' own format, and can keep kernels at a fixed norm.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        orthogonal: bool = False,
        fixed_norm: bool = False,
        lr_scale: float = 1.0,
    ) -> None:
        """Options of groups that do not say their own. fixed_norm: see the part `muon`. lr_scale: what whoever sets
        `lr` at every step multiplies it with."""
        own = {"orthogonal": orthogonal, "fixed_norm": fixed_norm, "lr_scale": lr_scale}
        super().__init__(list(groups), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, **own})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if group["lr"] == 0:
                continue
            turn = self._turn if group["orthogonal"] else self._descend
            for parameter in group["params"]:
                if parameter.grad is not None:
                    turn(parameter, parameter.grad, group)

    def _momentum(self, parameter: torch.Tensor, gradient: torch.Tensor, momentum: float) -> torch.Tensor:
        """Nesterov's: the gradient and what it will have added to the sum of the earlier ones."""
        state = self.state[parameter]
        held = state.setdefault("momentum_buffer", torch.zeros_like(parameter))
        held.mul_(momentum).add_(gradient)
        return gradient.add(held, alpha=momentum)

    def _descend(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        if group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        parameter.add_(self._momentum(parameter, gradient, group["momentum"]), alpha=-group["lr"])

    def _turn(self, kernel: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """kernel: [outputs, inputs, …]."""
        direction = self._momentum(kernel, gradient, group["momentum"]).movedim(1, -1)
        flat = direction.flatten(1)
        rate = group["lr"] * max(1.0, flat.shape[0] / flat.shape[1]) ** 0.5
        if group["weight_decay"] and not group["fixed_norm"]:
            kernel.mul_(1 - group["lr"] * group["weight_decay"])
        kernel.add_(orthogonalised(flat).view(direction.shape).movedim(-1, 1), alpha=-rate)
        if group["fixed_norm"]:
            kernel.mul_(len(kernel) ** 0.5 / kernel.norm())
