"""EncodedSource: sources of encoded images, what they have in common; your own images among them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from shoal.base.errors import shown_path
from shoal.data.decoder import Decoder
from shoal.data.decoders.auto import Auto
from shoal.data.image import Bytes, ImageError
from shoal.data.source import Held, Source, SourceError, Split, Streamed

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

Colour = tuple[float, float, float]


class EncodedSource(Source, frozen=True, kw_only=True):
    """Options of sources whose images have to be decoded."""

    on_bad: Literal["stop", "skip"] = "stop"
    """At an image that cannot be decoded: stop, or skip it. A skipped image keeps its place in the order, so that all
    others come when they would have come, but has no label and counts nowhere."""
    decoder: Annotated[Decoder, Meta(extra={"seam": "decoders", "default": "auto"})] = Auto()
    """What makes pixels of JPEGs (`shoal list decoders`); the pixels are the same, but for nvjpeg's."""
    memory_gib: Annotated[float, Meta(ge=0)] = 2.0
    """Splits whose images have all one size, and together at most this, are decoded once and held; GiB per worker."""

    def held(self, split: Streamed) -> Held | Streamed:
        """The images of `split`, decoded now where they are few and of one size."""
        from shoal.data.decode import hold

        return hold(split, int(self.memory_gib * 2**30))


class YourImages(EncodedSource, frozen=True, kw_only=True):
    """Options of sources that read files of yours, whatever the images show."""

    path: str
    """Where the images are."""
    val: str | None = None
    """Where the validation images are; absent: beside the others, below `path`."""
    image_size: Annotated[int, Meta(ge=1)] | None = None
    """Every image is resized (its shorter side) and cut (its middle) to this square before anything else, pixels;
    absent: images as they are."""
    mean: Colour = (123.675, 116.28, 103.53)
    """Red, green, blue, 0 to 255: the model sees (pixel - mean) / std. Default: ImageNet's."""
    std: Colour = (58.395, 57.12, 57.375)
    """Red, green, blue, in units of 0 to 255. Default: ImageNet's."""

    def faults(self) -> list[tuple[str, str]]:
        wrong = []
        if not all(0 <= value <= 255 for value in self.mean):
            wrong.append(("mean", "expected numbers from 0 to 255"))
        if not all(0 < value <= 255 for value in self.std):
            wrong.append(("std", "expected numbers above 0, up to 255"))
        return wrong

    def split(
        self,
        read: Callable[[int], Bytes],
        where: Callable[[int], str],
        labels: np.ndarray,
        classes: tuple[str, ...],
    ) -> Held | Streamed:
        """What `open` returns; the arguments are Streamed's, of all images."""
        return self.held(
            Streamed(
                read,
                where,
                labels[: self.limit],
                classes,
                mean=self.mean,
                std=self.std,
                side=self.image_size,
                on_bad=self.on_bad,
                jpeg=self.decoder.ready(),
            )
        )


def read_file(path: str) -> bytes:
    """An image file's bytes. ImageError where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ImageError(f"cannot be read ({error.strerror})") from None


def train_or_val(folder: Path, split: Split) -> Path:
    """The .rec of a split in a folder: the one with the split's name in its own; without a *val*.rec the *test*.rec."""
    words = ("train",) if split == "train" else ("val", "test")
    for word in words:
        found = sorted(file for file in folder.glob("*.rec") if word in file.stem.lower())
        if len(found) == 1:
            return found[0]
        if found:
            told = f"{len(found)} files are named *{word}*.rec; one is needed, or data.path and data.val"
            raise SourceError(f"{shown_path(folder)}: {told}")
    pattern = " or ".join(f"*{word}*.rec" for word in words)
    raise SourceError(f"{shown_path(folder)}: no file is named {pattern}; one is needed, or data.path and data.val")
