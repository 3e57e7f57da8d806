"""Source: where images come from. A source opens a split as Pixels (small, in memory) or Encoded (JPEG …)."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol

from msgspec import Meta

from shoal.base.errors import ShoalError
from shoal.data.augment import Augment
from shoal.recipe.part import Part

if TYPE_CHECKING:
    import numpy as np

Split = Literal["train", "val"]


class SourceError(ShoalError):
    """Images that are not there or not readable; names the path that was looked at."""


class Images(Protocol):
    """What any opened split tells about itself."""

    classes: tuple[str, ...]
    """Names of the classes; a label is an index into it."""
    labels: np.ndarray
    """int64 [n]."""
    shape: tuple[int, int, int]
    """Channels, height, width of an image before augmentation."""
    mean: tuple[float, ...]
    """Per channel, in units of 0 to 255; the model sees (pixel - mean) / std."""
    std: tuple[float, ...]


class Pixels(Images, Protocol):
    """Small images, decoded once and held in memory."""

    def pixels(self, indices: np.ndarray) -> np.ndarray:
        """uint8 [B, C, H, W] of the images at `indices` (int64 [B]); a copy, which augmentation may write into."""
        ...


class Encoded(Images, Protocol):
    """Large images, held as files or records and decoded when they are needed."""

    def read(self, index: int) -> bytes:
        """The encoded image, JPEG or PNG."""
        ...


class Source(Part, frozen=True, kw_only=True):
    """Options that every source has."""

    SEAM: ClassVar[str] = "sources"

    limit: Annotated[int, Meta(ge=1)] | None = None
    """Use only the first so many images of each split; absent: all."""
    threads: Annotated[int, Meta(ge=0, le=1)] = 1
    """1: a thread per worker prepares batches ahead; 0: the training thread prepares them itself."""
    augment: Augment = Augment()
    """Random crops and mirroring of training images."""
    eval_batch: Annotated[int, Meta(ge=1)] = 256
    """Images per validation chunk. Workers take whole chunks, so results do not depend on their number."""

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
    ) -> None:
        """images uint8 [n, C, H, W], labels integer [n]."""
        self.images = images[:limit]
        self.labels = labels[:limit].astype("int64")
        self.classes = classes
        self.shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
        self.mean = mean
        self.std = std

    def pixels(self, indices: np.ndarray) -> np.ndarray:
        return self.images[indices]
