"""Augmentation of small images, a whole batch at a time, by random numbers of (seed, epoch, sample index)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from shoal.recipe.part import Options

if TYPE_CHECKING:
    import numpy as np

_ROW, _COLUMN, _MIRROR = 1, 2, 3  # streams of random numbers; 0 is the order of samples


class Augment(Options, frozen=True, kw_only=True):
    """Random crops and mirroring of training images; validation takes the centre crop of the same size."""

    pad: Annotated[int, Meta(ge=0)] = 0
    """Pixels added on each side before cropping."""
    pad_mode: Literal["constant", "edge", "reflect"] = "constant"
    """What the added pixels hold: `fill`, the edge's pixel, or the image mirrored at its edge."""
    fill: Annotated[int, Meta(ge=0, le=255)] = 0
    """Value of pixels added with pad_mode constant (0 to 255)."""
    crop: Annotated[int, Meta(ge=1)] | None = None
    """Side of the square crop, pixels; absent: the size of the image before padding."""
    mirror: bool = False
    """Mirror every second image, on average, left to right."""

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of what the model sees."""
        return (self.crop, self.crop) if self.crop else (height, width)

    def train(self, images: np.ndarray, indices: np.ndarray, *, seed: int, epoch: int) -> np.ndarray:
        """images uint8 [B, C, H, W], indices int64 [B] -> uint8 [B, C, h, w]."""
        import numpy as np

        from shoal.data.order import key, uniform

        height, width = self.size(*images.shape[2:])
        if self.pad:
            edge = (self.pad, self.pad)
            around = ((0, 0), (0, 0), edge, edge)
            if self.pad_mode == "constant":
                images = np.pad(images, around, mode="constant", constant_values=self.fill)
            else:
                images = np.pad(images, around, mode=self.pad_mode)
        rows, columns = images.shape[2] - height + 1, images.shape[3] - width + 1
        if rows > 1 or columns > 1:
            row = (uniform(key(seed, epoch, _ROW), indices) * rows).astype(np.int64)
            column = (uniform(key(seed, epoch, _COLUMN), indices) * columns).astype(np.int64)
            windows = np.lib.stride_tricks.sliding_window_view(images, (height, width), axis=(2, 3))
            images = windows[np.arange(len(images)), :, row, column]
        if self.mirror:
            turned = uniform(key(seed, epoch, _MIRROR), indices) < 0.5
            images[turned] = images[turned][..., ::-1]
        return images

    def centre(self, images: np.ndarray) -> np.ndarray:
        """images uint8 [B, C, H, W] -> uint8 [B, C, h, w], the middle of each."""
        height, width = self.size(*images.shape[2:])
        top, left = (images.shape[2] - height) // 2, (images.shape[3] - width) // 2
        return images[:, :, top : top + height, left : left + width]

    def fault(self, height: int, width: int) -> str | None:
        """Why images of this size cannot be cropped so, or None."""
        if self.crop and self.crop > min(height, width) + 2 * self.pad:
            return f"a crop of {self.crop} px does not fit images of {height} x {width} px padded by {self.pad}"
        if self.crop and self.crop > min(height, width):
            return f"validation takes a centre crop of {self.crop} px, more than the {height} x {width} px of an image"
        if self.pad_mode == "reflect" and self.pad >= min(height, width):
            return f"a reflected pad of {self.pad} px needs images larger than that, not {height} x {width} px"
        return None
