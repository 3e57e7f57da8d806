"""The exponential moving average of a model's weights and buffers, over images seen."""

from __future__ import annotations

import copy

import torch
from torch import nn


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What of a tensor lies here, where workers hold pieces (`divided`); else all of it."""
    to_local = getattr(tensor, "to_local", None)  # a DTensor's; to import the class would take everybody 0.7 s
    return tensor if to_local is None else to_local()


class Average:
    """A second copy of the model that follows the first. Own, because timm's counts updates, not images."""

    def __init__(self, model: nn.Module, half_life: float) -> None:
        """half_life: images after which an old weight's part is one half."""
        self.model = copy.deepcopy(model).eval()
        for tensor in self.model.parameters():
            tensor.requires_grad_(False)
        self._half_life = half_life

    @torch.no_grad()
    def follow(self, model: nn.Module, images: int) -> None:
        """After a step over `images` images."""
        weight = 1 - 0.5 ** (images / self._half_life)
        own, new = ([local(held) for held in (*one.parameters(), *one.buffers())] for one in (self.model, model))
        floating = [(a, b.detach()) for a, b in zip(own, new, strict=True) if a.is_floating_point()]
        torch._foreach_lerp_([a for a, _ in floating], [b for _, b in floating], weight)  # type: ignore[attr-defined]
        for a, b in zip(own, new, strict=True):
            if not a.is_floating_point():
                a.copy_(b)
