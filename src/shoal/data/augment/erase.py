"""Erase and Cutout: rectangles of images, painted over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from shoal.data.augment.draws import CUTOUT, ERASE, Draws
from shoal.recipe.part import Options

if TYPE_CHECKING:
    import numpy as np

Colours = tuple[float, ...]
_TRIES = 10


class Erase(Options, frozen=True, kw_only=True):
    """Random erasing (Zhong et al. 2017): a rectangle in some of the images is painted over."""

    probability: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Share of the images it happens to."""
    area: tuple[float, float] = (0.02, 0.33)
    """Least and largest area, in areas of the image."""
    ratio: tuple[float, float] = (0.3, 3.3)
    """Least and largest height over width."""
    paint: Literal["mean", "colour", "noise"] = "mean"
    """The source's mean colour, which the model sees as 0; one random colour; a random colour for each pixel. Random
    ones have the source's mean and deviation (timm's const, rand and pixel)."""

    def faults(self) -> list[tuple[str, str]]:
        wrong = []
        if not 0 < self.area[0] <= self.area[1] < 1:
            wrong.append(("area", "expected two numbers, 0 < least <= largest < 1"))
        if not 0 < self.ratio[0] <= self.ratio[1]:
            wrong.append(("ratio", "expected two numbers, 0 < least <= largest"))
        return wrong

    def boxes(self, draws: Draws, height: int, width: int) -> np.ndarray:
        """int64 [B, 4]: top, left, height, width; empty where nothing is erased. Ten tries for one that fits, as
        torchvision's."""
        import numpy as np

        sizes = np.zeros((len(draws.indices), 2), np.int64)
        left = np.flatnonzero(draws.uniform(ERASE, 0) < self.probability)
        for number in range(_TRIES):
            if not len(left):
                break
            some = draws.of(left)
            area = height * width * some.between(*self.area, ERASE, 1, number)
            ratio = np.exp(some.between(*np.log(self.ratio), ERASE, 2, number))
            tried = np.rint(np.sqrt(np.stack([area * ratio, area / ratio], -1))).astype(np.int64)
            fits = ((tried > 0) & (tried < (height, width))).all(-1)
            sizes[left[fits]] = tried[fits]
            left = left[~fits]
        places = np.stack([draws.uniform(ERASE, 3), draws.uniform(ERASE, 4)], -1)
        return np.concatenate([(places * ((height, width) - sizes + 1)).astype(np.int64), sizes], -1)

    def apply(self, images: np.ndarray, draws: Draws, mean: Colours, std: Colours) -> np.ndarray:
        """Paints into `images`, uint8 [B, C, H, W]; mean and std per channel, 0 to 255."""
        for place, (top, left, tall, wide) in enumerate(self.boxes(draws, *images.shape[2:]).tolist()):
            if tall:
                paint = self._paint(draws.of(slice(place, place + 1)), (tall, wide), mean, std)
                images[place, :, top : top + tall, left : left + wide] = paint
        return images

    def _paint(self, draws: Draws, size: tuple[int, int], mean: Colours, std: Colours) -> np.ndarray:
        """uint8 [C, 1, 1], or [C, height, width]; draws of one image."""
        import numpy as np

        if self.paint == "mean":
            return flat(mean)
        shape = (len(mean), 1, 1) if self.paint == "colour" else (len(mean), *size)
        # As many numbers as there are pixels, of a stream of this image's own.
        numbers = Draws(np.arange(np.prod(shape)), draws.seed, draws.epoch)
        noise = numbers.normal(ERASE, 5, int(draws.indices[0])).reshape(shape)
        values = np.reshape(mean, (-1, 1, 1)) + np.reshape(std, (-1, 1, 1)) * noise
        return np.rint(np.clip(values, 0, 255)).astype(np.uint8)


class Cutout(Options, frozen=True, kw_only=True):
    """Cutout (DeVries and Taylor 2017): squares of the mean colour anywhere in every image, in part outside of it."""

    side: Annotated[int, Meta(ge=1)]
    """Side of a square, pixels (16 of 32 for CIFAR-10, 8 for CIFAR-100)."""
    count: Annotated[int, Meta(ge=1)] = 1
    """Squares in each image."""

    def apply(self, images: np.ndarray, draws: Draws, mean: Colours) -> np.ndarray:
        """Paints into `images`, uint8 [B, C, H, W]; mean per channel, 0 to 255."""
        colour, (height, width) = flat(mean), images.shape[2:]
        for number in range(self.count):
            rows = draws.whole(height, CUTOUT, number, 0) - self.side // 2
            columns = draws.whole(width, CUTOUT, number, 1) - self.side // 2
            for image, top, left in zip(images, rows.tolist(), columns.tolist(), strict=True):
                image[:, max(top, 0) : top + self.side, max(left, 0) : left + self.side] = colour
        return images


def flat(mean: Colours) -> np.ndarray:
    """uint8 [C, 1, 1]: the pixel that the model sees as nothing."""
    import numpy as np

    return np.array(mean).round().astype(np.uint8).reshape(-1, 1, 1)
