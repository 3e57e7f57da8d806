"""What the model sees: pixels, normalised on the device in the model's own format and memory layout."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Inputs:
    """uint8 [B, C, H, W] -> (pixel - mean) / std, as one multiplication and one addition."""

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        dtype: torch.dtype,
        device: torch.device,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        """mean, std: per channel, in units of 0 to 255."""
        scale = 1 / torch.tensor(std, dtype=torch.float64).view(1, -1, 1, 1)
        shift = -torch.tensor(mean, dtype=torch.float64).view(1, -1, 1, 1) * scale
        self._scale, self._shift = scale.to(device, dtype), shift.to(device, dtype)
        self._dtype, self._layout = dtype, layout

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return images.to(dtype=self._dtype, memory_format=self._layout).mul_(self._scale).add_(self._shift)
