"""Skeleton: a model without its weights, to check states by, and to be filled when an error is to be explained."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import nn

from shoal.strategies.replicated.rig import copy_state


class Skeleton:
    """Names, shapes and buffers of a model; its parameters take no memory."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model)
        _replace(self.model, lambda held: held.to("meta"))

    def filled(self, state: Mapping[str, torch.Tensor], device: torch.device) -> nn.Module:
        """The whole model with a whole state, in the mode the skeleton is in."""
        model = copy.deepcopy(self.model)
        _replace(model, lambda held: torch.empty_like(held, device=device))
        model.to(device)
        copy_state(model, dict(state))
        return model


def _replace(model: nn.Module, change) -> None:  # type: ignore[no-untyped-def]
    """Puts other parameters in the place of a model's; what modules share stays shared."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, held in module._parameters.items():
            if held is not None:
                if id(held) not in made:
                    made[id(held)] = nn.Parameter(change(held.detach()), requires_grad=held.requires_grad)
                module._parameters[name] = made[id(held)]
