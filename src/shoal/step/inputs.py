"""What the model sees: pixels, normalised on the device in the model's own format and memory layout."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Inputs(torch.nn.Module):
    """uint8 [B, C, H, W] -> (pixel - mean) / std, as one multiplication and one addition."""

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        dtype: torch.dtype,
        device: torch.device,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        """mean, std: per channel, in units of 0 to 255."""
        super().__init__()
        scale = 1 / torch.tensor(std, dtype=torch.float64).view(1, -1, 1, 1)
        shift = -torch.tensor(mean, dtype=torch.float64).view(1, -1, 1, 1) * scale
        self.register_buffer("scale", scale.to(device, dtype), persistent=False)
        self.register_buffer("shift", shift.to(device, dtype), persistent=False)
        self._layout = layout

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.to(dtype=self.scale.dtype, memory_format=self._layout).mul_(self.scale).add_(self.shift)
