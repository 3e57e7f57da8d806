"""Crops: random parts of the images of a batch, each resized to one square (random-resized crops)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from shoal.data.augment.draws import AREA, COLUMN, MIRROR, RATIO, ROW, Draws
from shoal.data.image import resized

if TYPE_CHECKING:
    import numpy as np
    import torch

_TRIES = 10

Box = tuple[int, int, int, int]
"""Top, left, height, width, in pixels."""
Mirror = bool | Literal["alternate"]


def mirrored(mirror: Mirror, indices: np.ndarray, *, seed: int, epoch: int) -> np.ndarray:
    """Which of the images at `indices` (int64 [B]) are mirrored in this epoch, bool [B]."""
    import numpy as np

    if not mirror:
        return np.zeros(len(indices), bool)
    if mirror == "alternate":
        return (Draws(indices, seed, 0).uniform(MIRROR) < 0.5) ^ bool(epoch % 2)
    return Draws(indices, seed, epoch).uniform(MIRROR) < 0.5


class Crops:
    """Random-resized crops (Szegedy et al. 2015) as torchvision's: ten tries of an area and a ratio that fit in the
    image, else its middle. The numbers are of (seed, epoch, sample index), whoever asks for them and in what order."""

    def __init__(
        self,
        indices: np.ndarray,
        side: int,
        scale: tuple[float, float],
        ratio: tuple[float, float],
        *,
        mirror: Mirror,
        seed: int,
        epoch: int,
        resizer: Callable[[torch.Tensor, int, int], torch.Tensor] = resized,
        turn: Callable[[int, torch.Tensor, Box], torch.Tensor] | None = None,
    ) -> None:
        """indices int64 [B]; side in pixels; scale and ratio: least and largest. turn: makes the square of a box of the
        image at a place of the batch, in the stead of cutting it out and `resizer`."""
        import numpy as np

        draws, tries = Draws(indices, seed, epoch), range(_TRIES)
        low, high = np.log(ratio)
        self._side, self._ratio, self._resizer, self._turn = side, ratio, resizer, turn
        self._areas = [draws.between(*scale, AREA, number) for number in tries]
        self._ratios = [np.exp(draws.between(low, high, RATIO, number)) for number in tries]
        self._rows, self._columns = draws.uniform(ROW), draws.uniform(COLUMN)
        self._mirrored = mirrored(mirror, indices, seed=seed, epoch=epoch)

    def box(self, place: int, height: int, width: int) -> Box:
        """What is taken of the image at `place` of the batch."""
        for areas, ratios in zip(self._areas, self._ratios, strict=True):
            area, ratio = height * width * areas[place], ratios[place]
            tall, wide = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < tall <= height and 0 < wide <= width:
                top = int(self._rows[place] * (height - tall + 1))
                return top, int(self._columns[place] * (width - wide + 1)), tall, wide
        tall = min(height, max(1, round(width / self._ratio[0])))
        wide = min(width, max(1, round(height * self._ratio[1])))
        return (height - tall) // 2, (width - wide) // 2, tall, wide

    def cut(self, place: int, image: torch.Tensor) -> torch.Tensor:
        """uint8 [C, H, W] -> uint8 [C, side, side]."""
        box = top, left, tall, wide = self.box(place, *image.shape[1:])
        if self._turn:
            part = self._turn(place, image, box)
        else:
            part = self._resizer(image[:, top : top + tall, left : left + wide], self._side, self._side)
        return part.flip(2) if self._mirrored[place] else part
