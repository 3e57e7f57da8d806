"""A model's gradients as one flat tensor, of which every parameter's `.grad` is a view."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


class FlatGradients:
    """One tensor to zero, check, scale, send; backward passes add into it."""

    def __init__(self, parameters: Iterable[nn.Parameter], flat: torch.Tensor | None = None) -> None:
        """flat: where they are to lie; None: in memory of their own."""
        held = [parameter for parameter in parameters if parameter.requires_grad]
        size = sum(parameter.numel() for parameter in held)
        self.flat = torch.zeros(size, dtype=held[0].dtype, device=held[0].device) if flat is None else flat
        low = 0
        for parameter in held:
            # The parameter's own strides, so that the optimizer's fused kernels see equal layouts.
            dense = parameter.is_contiguous() or parameter.is_contiguous(memory_format=torch.channels_last)
            piece = self.flat[low : low + parameter.numel()]
            parameter.grad = (
                piece.as_strided(parameter.shape, parameter.stride()) if dense else piece.view(parameter.shape)
            )
            low += parameter.numel()
