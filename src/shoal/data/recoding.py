"""Recoding: images made smaller once, so that each epoch decodes less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.data.image import resized

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Recoding:
    """As im2rec's --resize and --quality; no image is made larger."""

    shorter: int
    """Of the shorter side, pixels."""
    quality: int = 95
    """Of the new JPEG, 1 to 100."""

    def __call__(self, data: bytes, image: torch.Tensor) -> bytes:
        """data: the file; image: what it shows, uint8 [3, H, W]. The same bytes where it is small enough."""
        import torch
        import torchvision.io  # noqa: F401  (brings the operator)

        height, width = image.shape[1:]
        short = min(height, width)
        if short <= self.shorter:
            return data
        smaller = resized(image, round(height * self.shorter / short), round(width * self.shorter / short))
        return torch.ops.image.encode_jpeg(smaller.contiguous(), self.quality).numpy().tobytes()
