"""Affine: images turned, sheared, stretched and scaled about their middle, by one resampling together with the crop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from shoal.data.augment.draws import AFFINE, COLUMN, ROW, Draws
from shoal.data.image import resized
from shoal.recipe.part import Options

if TYPE_CHECKING:
    import numpy as np

Outside = Literal["constant", "edge", "reflect"]
PADDING = {"constant": "zeros", "edge": "border", "reflect": "reflection"}


class Affine(Options, frozen=True, kw_only=True):
    """Turns, shears, stretches and scales each image about its middle before it is cropped, as MXNet's iterator did.
    What lies outside is as `pad_mode` and `fill` say."""

    rotate: Annotated[float, Meta(ge=0, le=180)] = 0.0
    """Largest angle to either side, degrees."""
    shear: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Largest shear to either side: columns that a row moves, per row."""
    scale: tuple[float, float] = (1.0, 1.0)
    """Least and largest size, in sizes of the image. With augment.size the parts' areas (augment.scale) say that."""
    ratio: tuple[float, float] = (1.0, 1.0)
    """Least and largest stretch of heights over that of widths. With augment.size, augment.ratio says that."""

    def faults(self) -> list[tuple[str, str]]:
        told = "expected two numbers, 0 < least <= largest"
        return [(key, told) for key in ("scale", "ratio") if not 0 < getattr(self, key)[0] <= getattr(self, key)[1]]

    def drawn(self, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """Of each image: the matrix that leads from what is seen back into the image, float64 [B, 2, 2] for (x, y),
        and its scale, [B]."""
        import numpy as np

        angle = np.radians(draws.between(-self.rotate, self.rotate, AFFINE, 0))
        shear = draws.between(-self.shear, self.shear, AFFINE, 1)
        scale = draws.between(*self.scale, AFFINE, 2)
        ratio = draws.between(*self.ratio, AFFINE, 3)
        wide = 2 * scale / (1 + ratio)
        high = wide * ratio
        a, b = np.cos(angle), np.sin(angle)
        # The inverse of [[wide a - shear b high, wide b + shear a high], [-b high, a high]].
        rows = [[a * high, -(wide * b + shear * a * high)], [b * high, wide * a - shear * b * high]]
        return np.stack([np.stack(row, -1) for row in rows], -2) / (wide * high)[:, None, None], scale

    def windows(self, draws: Draws, image: tuple[int, int], seen: tuple[int, int], pad: int) -> np.ndarray:
        """float64 [B, 2, 3]: (column, row, 1) of a pixel that is seen -> (x, y) in the image, in pixels. Each window is
        a random one of the scaled image with `pad` around; where that is too small, its middle."""
        import numpy as np

        matrix, scale = self.drawn(draws)
        size, window = np.array(image[::-1]), np.array(seen[::-1])
        frame = np.maximum(np.rint(scale[:, None] * size), 1)
        room = frame + 2 * pad - window
        places = np.stack([draws.uniform(COLUMN), draws.uniform(ROW)], -1)
        corner = np.where(room >= 0, np.floor(places * (room + 1)), room / 2) - pad
        return _moved(matrix, corner + 0.5 - frame / 2, size / 2 - 0.5)


def part(
    matrix: np.ndarray, image: np.ndarray, box: tuple[int, int, int, int], side: int, *, outside: Outside, fill: int,
    antialias: bool,
) -> np.ndarray:  # fmt: skip
    """uint8 [C, H, W] -> uint8 [C, side, side]: the box (top, left, height, width) of the image turned by `matrix`
    (float64 [2, 2], as `Affine.drawn`). antialias: the image is shrunk first as far as the box will be."""
    import numpy as np
    import torch

    top, left, tall, wide = box
    size, stretch = np.array(image.shape[:0:-1]), np.array([wide, tall]) / side
    back = _moved(matrix[None], (np.array([left, top]) + stretch / 2 - size / 2)[None], size / 2 - 0.5)
    back[:, :, :2] *= stretch
    shrink = np.maximum(np.hypot(back[0, :, 0], back[0, :, 1]), 1)
    if antialias and shrink.max() > 1:
        low, high = np.zeros(2, int), size
        if outside != "reflect":  # which may look anywhere
            ends = np.array([[x, y, 1] for x in (0, side - 1) for y in (0, side - 1)])
            ends = (back[0] * ends[:, None]).sum(-1)
            margin = 2 * shrink + 1
            low = np.clip(np.floor(ends.min(0) - margin), 0, size - 1).astype(int)
            high = np.clip(np.ceil(ends.max(0) + margin), low + 1, size).astype(int)
        columns, rows = np.maximum(np.rint((high - low) / shrink), 1).astype(int)
        cut = torch.from_numpy(image[:, low[1] : high[1], low[0] : high[0]])
        image = resized(cut, int(rows), int(columns)).numpy()
        factor = (high - low) / (columns, rows)
        back[:, :, 2] += 0.5 - low
        back /= factor[:, None]
        back[:, :, 2] -= 0.5
    return warped(image[None], back, side, side, outside=outside, fill=fill)[0]


def warped(images: np.ndarray, back: np.ndarray, height: int, width: int, *, outside: Outside, fill: int) -> np.ndarray:
    """uint8 [B, C, H, W] -> uint8 [B, C, height, width], bilinear; back as `Affine.windows`."""
    import numpy as np
    import torch
    from torch.nn.functional import grid_sample

    # Products and sums one after another, not as a matrix product: the same bits in a batch of any size.
    x_of, y_of, at = back[..., 0, None, None], back[..., 1, None, None], back[..., 2, None, None]
    places = x_of * np.arange(width) + y_of * np.arange(height)[:, None] + at
    last = np.array(images.shape[:1:-1]) - 1
    grid = 2 * places / np.maximum(last, 1)[:, None, None] - 1
    grid = torch.from_numpy(np.ascontiguousarray(np.moveaxis(grid, 1, -1), np.float32))
    pixels = torch.from_numpy(np.ascontiguousarray(images)).float() - fill
    seen = grid_sample(pixels, grid, mode="bilinear", padding_mode=PADDING[outside], align_corners=True)
    return (seen + fill).round_().clamp_(0, 255).to(torch.uint8).numpy()


def _moved(matrix: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """x -> matrix (x + before) + after, as [B, 2, 3]."""
    import numpy as np

    shift = (matrix * before[:, None, :]).sum(-1) + after
    return np.concatenate([matrix, shift[..., None]], -1)
