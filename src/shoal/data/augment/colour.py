"""Colour: brightness, contrast, saturation, hue and lighting, changed at random; of a whole batch at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from shoal.data.augment.draws import COLOUR, Draws
from shoal.recipe.part import Options

if TYPE_CHECKING:
    import numpy as np

Share = Annotated[float, Meta(ge=0, le=1)]

LUMA = (0.2989, 0.587, 0.114)
HLS = (180, 255, 255)
"""Ranges of hue, lightness and saturation, as OpenCV's and MXNet's."""
EIGENVALUES = (55.46, 4.794, 1.148)
EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
"""Principal components of ImageNet's pixels, 0 to 255; a row per channel, a column per component."""


class Colour(Options, frozen=True, kw_only=True):
    """Random changes of an image's colours, one number for the whole image each: brightness, contrast and saturation in
    random order, then `hls`, then `pca`. Grey images know brightness and contrast only."""

    brightness: Share = 0.0
    """Pixels times 1 - this to 1 + this."""
    contrast: Share = 0.0
    """Differences from the image's mean grey times 1 - this to 1 + this."""
    saturation: Share = 0.0
    """Differences from each pixel's grey times 1 - this to 1 + this."""
    hls: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Most that is added to or taken from hue (0 to 180), lightness and saturation (0 to 255). As in MXNet, whole
    numbers, and hue stops at the ends of its range."""
    pca: Annotated[float, Meta(ge=0)] = 0.0
    """Standard deviation of the lighting noise along the principal components of ImageNet's colours (Krizhevsky et al.
    2012 have 0.1)."""

    def faults(self) -> list[tuple[str, str]]:
        fits = all(0 <= most <= end for most, end in zip(self.hls, HLS, strict=True))
        return [] if fits else [("hls", "expected hue from 0 to 180, lightness and saturation from 0 to 255")]

    @property
    def of_three_channels(self) -> str | None:
        """The first option here that grey images cannot have."""
        return next((key for key in ("saturation", "hls", "pca") if any(_list(getattr(self, key)))), None)

    def apply(self, images: np.ndarray, draws: Draws) -> np.ndarray:
        """uint8 [B, C, H, W] -> the same shape."""
        changes = [(BLENDS[key], getattr(self, key), number) for number, key in enumerate(BLENDS)]
        images = _in_random_order(images, draws, [change for change in changes if change[1]])
        if any(self.hls):
            images = hls_shifted(images, self._shifts(draws))
        return lit(images, self._lighting(draws)) if self.pca else images

    def _shifts(self, draws: Draws) -> np.ndarray:
        import numpy as np

        return np.trunc(np.stack([draws.between(-most, most, COLOUR, 4, n) for n, most in enumerate(self.hls)], -1))

    def _lighting(self, draws: Draws) -> np.ndarray:
        import numpy as np

        noise = np.stack([self.pca * draws.normal(COLOUR, 5, number) for number in range(3)], -1)
        return (np.array(EIGENVECTORS) * (np.array(EIGENVALUES) * noise)[:, None]).sum(-1)


def brightened(images: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """uint8 [B, C, H, W], factors float [B] -> uint8 [B, C, H, W]."""
    return _pixels(images * _each(factors))


def contrasted(images: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """As `brightened`: away from the image's mean grey, or towards it."""
    # Grey is whole numbers, whose sum in float64 has no rounding: the same in every order.
    means = grey(images).mean((1, 2, 3), dtype="float64")
    return _pixels(images * _each(factors) + _each(means * (1 - factors)))


def saturated(images: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """As `brightened`: away from each pixel's grey, or towards it."""
    return _pixels(images * _each(factors) + grey(images) * _each(1 - factors))


BLENDS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "brightness": brightened, "contrast": contrasted, "saturation": saturated
}  # fmt: skip


def grey(images: np.ndarray) -> np.ndarray:
    """uint8 [B, C, H, W] -> whole numbers, float32 [B, 1, H, W]."""
    import numpy as np

    if images.shape[1] == 1:
        return images.astype(np.float32)
    red, green, blue = (images[:, [number]] * np.float32(share) for number, share in enumerate(LUMA))
    return np.floor(red + green + blue)


def hls_shifted(images: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """uint8 [B, 3, H, W]; shifts [B, 3] of hue (0 to 180), lightness, saturation (0 to 255) -> uint8 [B, 3, H, W]."""
    import numpy as np

    pixels = images.astype(np.float32)
    red, green, blue = pixels[:, 0], pixels[:, 1], pixels[:, 2]
    high, low = pixels.max(1), pixels.min(1)
    spread, total = high - low, high + low
    sixth = np.where(high == red, green - blue, np.where(high == green, blue - red, red - green))
    sixth /= np.maximum(spread, 1)  # of the hues: -1 to 1 about red, green or blue
    hue = sixth + np.where(high == red, np.where(sixth < 0, 6, 0), np.where(high == green, 2, 4)).astype(np.float32)
    saturation = spread / np.maximum(np.minimum(total, 510 - total), 1) * 255
    shifted = (shifts.astype(np.float32)[:, number, None, None] for number in range(3))
    hue, lightness, saturation = (
        np.clip(value + shift, 0, end)
        for value, shift, end in zip((hue * 30, total / 2, saturation), shifted, HLS, strict=True)
    )
    swing = saturation / 255 * np.minimum(lightness, 255 - lightness)
    for number, ahead in enumerate((0, 8, 4)):  # the closed form of the way back, hue in twelfths
        step = hue / 15 + np.float32(ahead)
        step -= 12 * (step >= 12)
        pixels[:, number] = lightness - swing * np.clip(np.minimum(step - 3, 9 - step), -1, 1)
    return np.rint(pixels).astype(np.uint8)


def lit(images: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """uint8 [B, C, H, W] with a number of `shifts` [B, C] added to all pixels of each channel."""
    return _pixels(images + _each(shifts))


def _in_random_order(images: np.ndarray, draws: Draws, changes: list) -> np.ndarray:
    """changes: (blend, most, number of its stream); each image has its own order."""
    import numpy as np

    if not changes:
        return images
    factors = [draws.between(1 - most, 1 + most, COLOUR, 0, number) for _, most, number in changes]
    ranks = np.argsort([draws.uniform(COLOUR, 1, number) for _, _, number in changes], 0, kind="stable")
    for turn in ranks:
        for place, (blend, _, _) in enumerate(changes):
            rows = np.flatnonzero(turn == place)
            if len(rows):
                images[rows] = blend(images[rows], factors[place][rows])
    return images


def _each(numbers: np.ndarray) -> np.ndarray:
    """[B] or [B, C], one number per image or channel, as float32 beside [B, C, H, W]."""
    return numbers.astype("float32").reshape(len(numbers), -1, 1, 1)


def _pixels(values: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.clip(values, 0, 255, out=values).astype(np.uint8)


def _list(value: float | tuple[float, ...]) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)
