"""Source: where images come from. A source opens a split as Pixels (small, in memory) or Encoded (JPEG …)."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol

from msgspec import Meta

from shoal.base.errors import ShoalError, UsageError
from shoal.data.augment import Augment
from shoal.data.image import Bytes, ImageError, centred, decode
from shoal.data.shuffle import Shuffle
from shoal.recipe.part import Part

if TYPE_CHECKING:
    import numpy as np
    import torch

    from shoal.data.decoder import Jpeg

Split = Literal["train", "val"]

NO_LABEL, NO_IMAGE = -1, -2
"""In the place of a label: an image of unknown class; one that cannot be decoded, is skipped and counts nowhere."""


class SourceError(ShoalError):
    """Images that are not there or not readable; names the path that was looked at."""


class Images(Protocol):
    """What any opened split tells about itself."""

    classes: tuple[str, ...]
    """Names of the classes; a label is an index into it."""
    labels: np.ndarray
    """int64 [n]; NO_LABEL, NO_IMAGE."""
    shape: tuple[int, int, int]
    """Channels, height, width of an image before augmentation; 0, 0 where images differ in size."""
    mean: tuple[float, ...]
    """Per channel, in units of 0 to 255; the model sees (pixel - mean) / std."""
    std: tuple[float, ...]
    notes: tuple[str, ...]
    """What a person should know about these images, as how many were skipped."""
    told: str
    """Where they come from, and why; empty: nothing to say."""


class Pixels(Images, Protocol):
    """Small images, decoded once and held in memory."""

    def pixels(self, indices: np.ndarray) -> np.ndarray:
        """uint8 [B, C, H, W] of the images at `indices` (int64 [B]); a copy, which augmentation may write into."""
        ...


class Encoded(Images, Protocol):
    """Large images, held as files or records and decoded when they are needed."""

    def read(self, index: int, /) -> Bytes:
        """The encoded image, JPEG or PNG; not to be written into."""
        ...

    def image(self, index: int) -> torch.Tensor | None:
        """The image, uint8 [C, H, W]; None where it cannot be decoded and such images are skipped."""
        ...


class Source(Part, frozen=True, kw_only=True):
    """Options that every source has."""

    SEAM: ClassVar[str] = "sources"

    limit: Annotated[int, Meta(ge=1)] | None = None
    """Use only the first so many images of each split; absent: all."""
    threads: Annotated[int, Meta(ge=0)] = 1
    """Threads per worker that prepare batches ahead, decoding large images; 0: the training thread does it."""
    augment: Augment = Augment()
    """What training images go through: crops, mirroring, changes of shape and colour (docs/augment.md)."""
    shuffle: Shuffle = Shuffle()
    """The order of training images."""
    eval_batch: Annotated[int, Meta(ge=1)] = 256
    """Images per validation chunk. Workers take whole chunks, so results do not depend on their number."""

    def check(self, images: Images) -> None:
        """UsageError: images that the augmentation does not fit."""
        if misfit := self.augment.fault(*images.shape):
            raise UsageError(f"data.augment: {misfit}{f' (these are {images.told})' if images.told else ''}")

    @abstractmethod
    def open(self, split: Split) -> Pixels | Encoded:
        """The images of one split; SourceError names the path it looked at."""


class Held:
    """Pixels over arrays in memory."""

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        classes: tuple[str, ...],
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        limit: int | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        """images uint8 [n, C, H, W], labels integer [n]."""
        self.images = images[:limit]
        self.labels = labels[:limit].astype("int64")
        self.classes = classes
        self.shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
        self.mean = mean
        self.std = std
        self.notes = notes
        self.told = ""
        self.origin: Streamed | None = None
        """What they were decoded from, where that is still there."""

    def pixels(self, indices: np.ndarray) -> np.ndarray:
        return self.images[indices]


class Streamed:
    """Encoded over files or records: decoded anew each time an image is needed."""

    def __init__(
        self,
        read: Callable[[int], Bytes],
        where: Callable[[int], str],
        labels: np.ndarray,
        classes: tuple[str, ...],
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        side: int | None = None,
        on_bad: Literal["stop", "skip"] = "stop",
        jpeg: Jpeg | None = None,
        nbytes: Callable[[int], int] | None = None,
        version: object = None,
    ) -> None:
        """where: how messages name an image. labels integer [n]. side: images are resized and cut to that, pixels.
        jpeg: decodes those. nbytes: of an encoded image, where that is known without reading it. version: another
        one, once the files have changed."""
        self.read, self.where = read, where
        self.nbytes = nbytes or (lambda index: len(read(index)))
        self.version = version
        self.labels = labels.astype("int64")
        self.classes = classes
        self.shape: tuple[int, int, int] = (3, side or 0, side or 0)
        self.mean = mean
        self.std = std
        self.notes: tuple[str, ...] = ()
        self.told = ""
        self.on_bad = on_bad
        self._jpeg = jpeg
        self._side = side
        self._skipped: set[int] = set()

    def decoded(self, index: int) -> torch.Tensor:
        """The image, uint8 [3, H, W]. ImageError says why there is none."""
        image = decode(self.read(index), self._jpeg)
        return image if image.shape == self.shape or not self._side else centred(image, self._side, self._side)

    def image(self, index: int) -> torch.Tensor | None:
        try:
            return self.decoded(index)
        except ImageError as error:
            if self.on_bad == "stop":
                raise SourceError(bad_image(self.where(index), error)) from None
            if index not in self._skipped:
                self._skipped.add(index)
                told = f"{self.where(index)} {error}; skipped ({len(self._skipped):,} so far)"
                print(f"WARNING: {told}", file=sys.stderr, flush=True)
            return None


def bad_image(where: str, error: ImageError, others: int = 0) -> str:
    """What stops a training at an image that cannot be used."""
    also = f", and so are {others:,} more" if others else ""
    return f"{where} {error}{also}; mend or remove it, or train without such images: data.on_bad=skip"
