"""Given: images from outside the training's data, brought to the form of its images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.data.encoded import read_file
from shoal.data.image import Bytes, ImageError, centred, covering, decode, from_pillow

if TYPE_CHECKING:
    from PIL.Image import Image

    Picture = str | Path | bytes | Image | torch.Tensor
    """A file's path, an encoded image's bytes, a Pillow image, or pixels, uint8 [C, H, W]."""

_LUMA = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64).view(3, 1, 1)
"""Grey of red, green and blue (ITU-R BT.601), as Pillow has it."""

_LONGEST = 100
"""Longer images are refused: resized by their shorter side they would fill the memory."""


class Given:
    """A split (`data.source.Encoded`) without labels. Images that cannot be used are skipped; `faults` tells why."""

    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    told = ""

    def __init__(
        self,
        pictures: Sequence[Picture],
        *,
        shape: Sequence[int],
        mean: Sequence[float],
        std: Sequence[float],
        image_size: int | None,
    ) -> None:
        """shape: channels, height, width that the training had before augmentation; 0, 0 for several sizes.
        image_size: what its source resized images to, pixels."""
        self.pictures = pictures
        self.labels = np.zeros(len(pictures), np.int64)
        self.shape: tuple[int, int, int] = (shape[0], shape[1], shape[2])
        self.mean, self.std = tuple(mean), tuple(std)
        self._side = image_size
        self.faults: dict[int, ImageError] = {}

    def read(self, index: int, /) -> Bytes:
        picture = self.pictures[index]
        return read_file(str(picture)) if isinstance(picture, (str, Path)) else bytes(picture)  # type: ignore[arg-type]

    def image(self, index: int) -> torch.Tensor | None:
        try:
            return self._fitted(self._pixels(index))
        except ImageError as error:
            self.faults[index] = error
            return None

    def _pixels(self, index: int) -> torch.Tensor:
        picture: Any = self.pictures[index]
        if isinstance(picture, (str, Path, bytes)):
            return decode(self.read(index))
        if not isinstance(picture, torch.Tensor):
            return from_pillow(picture)
        if picture.dtype != torch.uint8 or picture.ndim != 3 or picture.shape[0] not in (1, 3):
            form = f"{str(picture.dtype).removeprefix('torch.')} {list(picture.shape)}"
            raise ImageError(f"is {form}; expected pixels, uint8 [1 or 3 channels, height, width]")
        return picture

    def _fitted(self, image: torch.Tensor) -> torch.Tensor:
        channels, height, width = self.shape
        if max(image.shape[1:]) > _LONGEST * min(image.shape[1:]):
            raise ImageError(f"has {image.shape[2]} x {image.shape[1]} px; one side is over {_LONGEST} times the other")
        if channels == 1 and len(image) == 3:
            image = (image * _LUMA).sum(0, keepdim=True).round().to(torch.uint8)
        elif len(image) != channels:
            image = image.expand(channels, -1, -1)
        if self._side:
            return centred(image, self._side, self._side)
        return covering(image, height, width) if height else image
