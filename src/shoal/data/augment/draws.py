"""Draws: the random numbers of some images. Each is a function of (seed, epoch, stream, sample index) alone, so that an
image looks the same whoever makes it, in whatever batch, on however many threads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

ROW, COLUMN, MIRROR, AREA, RATIO = 1, 2, 3, 4, 5
AFFINE, POLICY, COLOUR, ERASE, CUTOUT = 8, 9, 10, 11, 12
"""Streams of random numbers; 0 and 13 are the order of samples, 7 the partners of mixup."""


@dataclass(frozen=True)
class Draws:
    """Of the images at `indices` (int64 [B]), in one epoch. A stream may have further numbers, as which try it is."""

    indices: np.ndarray
    seed: int
    epoch: int

    def of(self, rows: np.ndarray | slice) -> Draws:
        """The same for some of the images."""
        return replace(self, indices=self.indices[rows])

    def uniform(self, *stream: int) -> np.ndarray:
        """float64 [B] in [0, 1)."""
        from shoal.data.order import key, uniform

        return uniform(key(self.seed, self.epoch, *stream), self.indices)

    def between(self, low: float, high: float, *stream: int) -> np.ndarray:
        """float64 [B] in [low, high)."""
        return low + (high - low) * self.uniform(*stream)

    def whole(self, count: int, *stream: int) -> np.ndarray:
        """int64 [B], 0 … count-1."""
        return (self.uniform(*stream) * count).astype("int64")

    def normal(self, *stream: int) -> np.ndarray:
        """float64 [B], of mean 0 and deviation 1 (Box and Muller 1958)."""
        import numpy as np

        radius = np.sqrt(-2 * np.log(1 - self.uniform(*stream, 0)))
        return radius * np.cos(2 * np.pi * self.uniform(*stream, 1))
