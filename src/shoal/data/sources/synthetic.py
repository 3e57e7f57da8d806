"""Made-up images that can be learned: a fixed pattern per class under noise. For tests, speed and scaling studies."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from shoal.data.source import Held, Source, Split

Count = Annotated[int, Meta(ge=1)]


class Synthetic(Source, frozen=True, kw_only=True):
    """Images made from numbers alone; no files, no network. Held in memory, uint8."""

    name: Literal["synthetic"] = "synthetic"
    images: Count = 2048
    """Training images; validation has a quarter as many."""
    classes: Annotated[int, Meta(ge=2)] = 10
    """Classes."""
    channels: Count = 3
    """Colour channels."""
    size: Count = 32
    """Height and width, pixels."""
    noise: Annotated[float, Meta(ge=0)] = 0.5
    """Standard deviation of the noise over that of the pattern; 0 makes the task trivial."""

    def open(self, split: Split) -> Held:
        import numpy as np

        count = self.images if split == "train" else max(1, self.images // 4)
        rng = np.random.default_rng([2, split == "val"])
        pattern = np.random.default_rng(1).normal(size=(self.classes, self.channels, self.size, self.size))
        labels = np.arange(count) % self.classes
        images = np.empty((count, self.channels, self.size, self.size), np.uint8)
        for low in range(0, count, 256):  # in pieces: the noise of a large set would fill the memory
            block = slice(low, min(low + 256, count))
            noise = rng.normal(size=images[block].shape) * self.noise
            images[block] = np.clip(127.5 + 40 * (pattern[labels[block]] + noise), 0, 255).astype(np.uint8)
        deviation = 40 * (1 + self.noise**2) ** 0.5
        return Held(
            images,
            labels,
            tuple(f"pattern {number}" for number in range(self.classes)),
            mean=(127.5,) * self.channels,
            std=(deviation,) * self.channels,
            limit=self.limit,
        )
