"""Augmentation by random numbers of (seed, epoch, sample index): of small images a whole batch at a time, of large ones
image by image, beginning with Crops."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from shoal.data.augment.affine import Affine, Outside, part, warped
from shoal.data.augment.colour import Colour
from shoal.data.augment.crops import Box, Crops, Mirror, mirrored
from shoal.data.augment.draws import COLUMN, ROW, Draws
from shoal.data.augment.erase import Colours, Cutout, Erase
from shoal.data.augment.policy import Policy
from shoal.data.image import linearly, resized
from shoal.recipe.part import Options

if TYPE_CHECKING:
    import numpy as np
    import torch

Side = Annotated[int, Meta(ge=1)]


class Augment(Options, frozen=True, kw_only=True):
    """What training images go through; validation takes the centre crop of the same size.

    Small images of one size: `affine`, `pad`, `crop`. Images of any size: `affine`, then `size`, a random part of the
    image, resized (random-resized crops, Szegedy et al. 2015); pad and crop stay away. Then, in this order: `mirror`,
    `policy`, `colour`, `erase`, `cutout`.
    """

    pad: Annotated[int, Meta(ge=0)] = 0
    """Pixels added on each side before cropping."""
    pad_mode: Outside = "constant"
    """What the added pixels, and those outside of a turned image, hold: `fill`, the edge's pixel, or the image mirrored
    at its edge."""
    fill: Annotated[int, Meta(ge=0, le=255)] = 0
    """Value of pixels added with pad_mode constant (0 to 255)."""
    crop: Side | None = None
    """Side of the square crop, pixels; absent: the size of the image before padding."""
    mirror: Mirror = False
    """true: mirror every second image, on average, left to right. alternate: those in the first epoch, the others in
    the next, and so on, so that in two epochs the model sees either side once (Jordan 2024, arXiv 2404.00498)."""
    size: Side | None = None
    """Side of the square that a random part of the image is resized to, pixels; absent: no resizing."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Least and largest area of that part, in areas of the image (above 0, up to 1)."""
    ratio: tuple[float, float] = (0.75, 1.3333)
    """Least and largest width over height of that part."""
    filter: Literal["antialias", "linear"] = "antialias"
    """How that part is resized: antialias looks at all pixels that fall together, as Pillow's bilinear does; linear at
    the nearest four only, which is faster and rougher where it shrinks (needs opencv). Validation has antialias."""
    resize: Side | None = None
    """Validation with `size`: the shorter side before the centre crop, pixels; absent: size / 0.875 (256 for 224)."""
    affine: Affine | None = None
    """Rotation, shear, stretch and scale about the image's middle; absent: none."""
    policy: Annotated[Policy | None, Meta(extra={"seam": "policies"})] = None
    """Operations chosen at random: randaugment, trivialaugment, autoaugment (`shoal list policies`); absent: none."""
    colour: Colour | None = None
    """Brightness, contrast, saturation, hue and lighting; absent: as they are."""
    erase: Erase | None = None
    """Random erasing: a rectangle of an image painted over; absent: none."""
    cutout: Cutout | None = None
    """Cutout: squares of the mean colour; absent: none."""

    @property
    def shorter(self) -> int:
        """Shorter side of a validation image before its centre crop of `size`, pixels."""
        return self.resize or round((self.size or 0) / 0.875)

    def faults(self) -> list[tuple[str, str]]:
        wrong = []
        if self.size and self.affine and self.affine.scale != (1, 1):
            wrong.append(("affine.scale", "with `size` the areas of its parts (augment.scale) say that"))
        if self.size and self.affine and self.affine.ratio != (1, 1):
            wrong.append(("affine.ratio", "with `size` the shapes of its parts (augment.ratio) say that"))
        if self.size and (self.pad or self.crop):
            wrong.append(("size", "resizes a random part of the image; pad and crop are for images of one size"))
        if not self.size and self.filter != "antialias":
            wrong.append(("filter", "is of parts resized to `size`, which is missing"))
        if self.filter == "linear" and not find_spec("cv2"):
            wrong.append(("filter", "linear needs OpenCV: pip install opencv-python-headless"))
        if not self.size and self.resize:
            wrong.append(("resize", "is the shorter side before the centre crop of `size`, which is missing"))
        if self.size and self.resize and self.resize < self.size:
            wrong.append(("resize", f"{self.resize} px leave no centre crop of {self.size} px"))
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            wrong.append(("scale", "expected two numbers, 0 < least <= largest <= 1"))
        if not 0 < self.ratio[0] <= self.ratio[1]:
            wrong.append(("ratio", "expected two numbers, 0 < least <= largest"))
        return wrong

    def seen(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of what the model sees of images of this size (any, with `size`)."""
        if self.size:
            return self.size, self.size
        return (self.crop, self.crop) if self.crop else (height, width)

    def random(self, height: int, width: int) -> str | None:
        """The option that has images of this size look otherwise from epoch to epoch; None: they never do."""
        if self.size or not height:
            return "size"
        cut = self.seen(height, width) != (height, width)
        kinds = ("affine", "policy", "colour", "erase", "cutout")
        ways = {"pad": self.pad, "crop": cut, "mirror": self.mirror, **{key: getattr(self, key) for key in kinds}}
        return next((key for key, on in ways.items() if on), None)

    def crops(self, indices: np.ndarray, *, seed: int, epoch: int) -> Crops:
        """With `size`: where to cut each of the images at `indices` (int64 [B])."""
        resizer = linearly if self.filter == "linear" else resized
        square = (self.size or 0, self.scale, self.ratio)
        turn = self._turning(Draws(indices, seed, epoch)) if self.affine else None
        return Crops(indices, *square, mirror=self.mirror, seed=seed, epoch=epoch, resizer=resizer, turn=turn)

    def _turning(self, draws: Draws) -> Callable[[int, torch.Tensor, Box], torch.Tensor]:
        """Makes the square of a box of a turned image."""
        from torch import from_numpy

        assert self.affine is not None and self.size
        side, antialias, (matrices, _) = self.size, self.filter == "antialias", self.affine.drawn(draws)

        def turned(place: int, image: torch.Tensor, box: Box) -> torch.Tensor:
            outside = {"outside": self.pad_mode, "fill": self.fill}
            return from_numpy(part(matrices[place], image.numpy(), box, side, **outside, antialias=antialias))

        return turned

    def train(self, images: np.ndarray, indices: np.ndarray, *, seed: int, epoch: int) -> np.ndarray:
        """Without `size`: images uint8 [B, C, H, W], indices int64 [B] -> uint8 [B, C, h, w], cut and mirrored."""
        seen, draws = self.seen(*images.shape[2:]), Draws(indices, seed, epoch)
        if self.affine:
            back = self.affine.windows(draws, images.shape[2:], seen, self.pad)
            images = warped(images, back, *seen, outside=self.pad_mode, fill=self.fill)
        else:
            images = self._cut(self._padded(images), seen, draws)
        turned = mirrored(self.mirror, indices, seed=seed, epoch=epoch)
        if turned.any():
            images[turned] = images[turned][..., ::-1]
        return images

    def _padded(self, images: np.ndarray) -> np.ndarray:
        import numpy as np

        if not self.pad:
            return images
        around = ((0, 0), (0, 0), (self.pad, self.pad), (self.pad, self.pad))
        if self.pad_mode == "constant":
            return np.pad(images, around, mode="constant", constant_values=self.fill)
        return np.pad(images, around, mode=self.pad_mode)

    @staticmethod
    def _cut(images: np.ndarray, seen: tuple[int, int], draws: Draws) -> np.ndarray:
        """A window of each image."""
        import numpy as np

        rows, columns = images.shape[2] - seen[0] + 1, images.shape[3] - seen[1] + 1
        if rows == columns == 1:
            return images
        windows = np.lib.stride_tricks.sliding_window_view(images, seen, axis=(2, 3))
        return windows[np.arange(len(images)), :, draws.whole(rows, ROW), draws.whole(columns, COLUMN)]

    @property
    def paints(self) -> bool:
        """Whether anything comes after cutting and mirroring."""
        return any((self.policy, self.colour, self.erase, self.cutout))

    def painted(self, images: np.ndarray, draws: Draws, mean: Colours, std: Colours) -> np.ndarray:
        """What comes after cutting and mirroring: uint8 [B, C, h, w] -> the same shape, perhaps in place. mean and
        std: the source's, per channel, 0 to 255."""
        if self.policy:
            images = self.policy.apply(images, draws)
        if self.colour:
            images = self.colour.apply(images, draws)
        if self.erase:
            images = self.erase.apply(images, draws, mean, std)
        return self.cutout.apply(images, draws, mean) if self.cutout else images

    def centre(self, images: np.ndarray) -> np.ndarray:
        """Without `size`: images uint8 [B, C, H, W] -> uint8 [B, C, h, w], the middle of each."""
        height, width = self.seen(*images.shape[2:])
        top, left = (images.shape[2] - height) // 2, (images.shape[3] - width) // 2
        return images[:, :, top : top + height, left : left + width]

    def fault(self, channels: int, height: int, width: int) -> str | None:
        """Why images of this shape (0 x 0: of several sizes) cannot be augmented so, or None."""
        if self.colour and channels != 3 and (key := self.colour.of_three_channels):
            return f"colour.{key} is of red, green and blue, and these images have {channels} channel"
        if self.size:
            return None
        if not height:
            return (
                "images of several sizes need data.augment.size (random parts, resized to that) or data.image_size "
                "(every image resized and cut to that once); with data.cache=none all images do"
            )
        if self.crop and self.crop > min(height, width) + 2 * self.pad:
            return f"a crop of {self.crop} px does not fit images of {height} x {width} px padded by {self.pad}"
        if self.crop and self.crop > min(height, width):
            return f"validation takes a centre crop of {self.crop} px, more than the {height} x {width} px of an image"
        if self.pad_mode == "reflect" and self.pad >= min(height, width):
            return f"a reflected pad of {self.pad} px needs images larger than that, not {height} x {width} px"
        return None
