"""EncodedSource: sources of encoded images, what they have in common; your own images among them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from shoal.base.errors import shown_path
from shoal.base.world import World
from shoal.data.decoder import Decoder
from shoal.data.decoders.auto import Auto
from shoal.data.image import Bytes, ImageError
from shoal.data.source import Encoded, Pixels, Source, SourceError, Split, Streamed

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
    cache: Literal["ram", "file", "none"] = "ram"
    """Where images wait for their next epoch, which is then the same: ram, decoded once and held, where all have one
    size, take at most memory_gib and fit in memory; file, in a file in cache_path, as pixels where all have one size,
    else as they are; none, decoded anew each time (then image_size or augment.size has to say which size)."""
    memory_gib: Annotated[float, Meta(ge=0)] = 2.0
    """The most that cache: ram holds of a split; GiB per worker."""
    cache_path: str | None = None
    """Of cache: file, a folder on a fast disk of each host, which its workers and later trainings share. What is kept
    there belongs to the images as they are: others are kept beside, and nothing is removed."""

    def faults(self) -> list[tuple[str, str]]:
        if self.cache == "file" and not self.cache_path:
            return [("cache_path", "cache: file needs a folder on a fast disk to keep images in")]
        if self.cache != "file" and self.cache_path:
            return [("cache_path", f"is of cache: file, not of {self.cache}")]
        return []

    def held(self, split: Streamed) -> Pixels | Encoded:
        """The images of `split` from where `cache` says."""
        if self.cache == "none" or not len(split.labels):
            return split
        from shoal.data.cache import in_file, in_memory

        resized = self.augment.size is not None
        if self.cache == "file":
            decoder = None if self.decoder.EXACT else self.decoder.name
            return in_file(split, Path(self.cache_path or ""), decoder=decoder, resized=resized)
        world = World.from_env(os.environ)
        workers = world.ranks_per_node if world else 1
        return in_memory(split, int(self.memory_gib * 2**30), workers, resized=resized)


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
        wrong = super().faults()
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
        *,
        nbytes: Callable[[int], int],
        version: object,
    ) -> Pixels | Encoded:
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
                nbytes=nbytes,
                version=version,
            )
        )


def read_file(path: str, *, listed: bool = False) -> bytes:
    """An image file's bytes; listed: it was found in a folder. ImageError where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise _unreadable(error, listed) from None


def file_size(path: str) -> int:
    """Bytes of an image file that was found in a folder. ImageError where it cannot be read."""
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise _unreadable(error, listed=True) from None


def _unreadable(error: OSError, listed: bool) -> ImageError:
    if listed and isinstance(error, FileNotFoundError):
        return ImageError("is no longer there; it was when the folder was listed")
    return ImageError(f"cannot be read ({error.strerror})")


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
