"""Decoding: a split's images as batches of one shape, by several threads; or all of them at once, to be held."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np
import torch

from shoal.base.beats import beat
from shoal.base.host import cores
from shoal.data.augment import Augment
from shoal.data.augment.draws import Draws
from shoal.data.augment.erase import flat
from shoal.data.image import ImageError, centred
from shoal.data.source import NO_IMAGE, Encoded, Held, Pixels, SourceError, Streamed, bad_image

_SOME = 64
"""Images that a thread decodes into memory before it asks for more."""


class Pictures:
    """A split's images as the model sees them; any of them, in any order. Labels are NO_IMAGE where one was
    skipped.

    Decoders work outside Python's lock, so threads decode at the same time, each into its place in the batch.
    """

    def __init__(self, data: Pixels | Encoded, augment: Augment, threads: int = 1) -> None:
        self._data, self._augment = data, augment
        self._pixels = cast(Pixels, data) if hasattr(data, "pixels") else None
        by_image = augment.size is not None or self._pixels is None
        self._pool = ThreadPoolExecutor(threads, "decode") if by_image and threads > 1 else None

    def train(self, chosen: np.ndarray, *, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Augmented, uint8 [B, C, h, w], and their labels, int64 [B]; chosen int64 [B]."""
        augment, draws = self._augment, Draws(chosen, seed, epoch)
        colours = self._data.mean, self._data.std
        if augment.size:
            crops = augment.crops(chosen, seed=seed, epoch=epoch)

            def look(place: int, image: torch.Tensor) -> torch.Tensor:
                mine, cut = draws.of(slice(place, place + 1)), crops.cut(place, image).numpy()[None]
                return torch.from_numpy(augment.painted(cut, mine, *colours)[0])

            images, labels = self._each(chosen, (augment.size, augment.size), look if augment.paints else crops.cut)
        else:
            images, labels = self._whole(chosen)
            images = augment.painted(augment.train(images, chosen, seed=seed, epoch=epoch), draws, *colours)
        return self._blanked(images, labels)

    def val(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The middle of each, uint8 [B, C, h, w], and their labels, int64 [B]; chosen int64 [B]."""
        if side := self._augment.size:
            shorter = self._augment.shorter
            images, labels = self._each(chosen, (side, side), lambda _, image: centred(image, shorter, side))
        else:
            images, labels = self._whole(chosen)
            images = self._augment.centre(images)
        return self._blanked(images, labels)

    def _blanked(self, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What is skipped is nothing to the model, wherever it comes from and whatever was painted on it."""
        skipped = labels == NO_IMAGE
        if skipped.any():
            images[skipped] = flat(self._data.mean)
        return images, labels

    def _whole(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images of one size as they are."""
        if self._pixels is not None:
            return self._pixels.pixels(chosen), self._data.labels[chosen]
        return self._each(chosen, self._data.shape[1:], lambda _, image: image)

    def _each(
        self, chosen: np.ndarray, size: tuple[int, int], look: Callable[[int, torch.Tensor], torch.Tensor]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Each image as `look(place in the batch, image)` makes it, in one array made beforehand: pixel after pixel,
        as decoders write them and models in channels_last read them."""
        images = np.empty((len(chosen), *size, self._data.shape[0]), np.uint8).transpose(0, 3, 1, 2)
        labels = self._data.labels[chosen]
        target = torch.from_numpy(images)

        def make(place: int) -> None:
            image = None if labels[place] == NO_IMAGE else self._image(chosen[place])
            if image is None:
                labels[place] = NO_IMAGE
            else:
                target[place] = look(place, image)

        for _ in (self._pool.map if self._pool else map)(make, range(len(chosen))):
            pass
        return images, labels

    def _image(self, index: int) -> torch.Tensor | None:
        if self._pixels is not None:
            return torch.from_numpy(self._pixels.pixels(np.array([index]))[0])
        return cast(Encoded, self._data).image(int(index))


def hold(data: Streamed, size: tuple[int, ...]) -> Held | None:
    """The images decoded once, on all cores; None where not all have the size (channels, height, width).

    SourceError: images that cannot be decoded, unless they are to be skipped; then they are blank, NO_IMAGE.
    """
    held = np.empty((len(data.labels), *size), np.uint8)  # by numpy, which asks for huge pages

    def room(low: int, high: int) -> torch.Tensor:
        return torch.from_numpy(held[low:high])

    bad = decode_all(data, size, room)
    if bad is None:
        return None
    labels, notes = marked(data, bad)
    return Held(held, labels, data.classes, mean=data.mean, std=data.std, notes=notes)


def decode_all(
    data: Streamed,
    size: tuple[int, ...],
    room: Callable[[int, int], torch.Tensor],
    done: Callable[[int, torch.Tensor], None] = lambda low, images: None,
) -> dict[int, ImageError] | None:
    """Every image decoded, on all cores: those of [low, high) into `room(low, high)`, uint8 [high - low, C, H, W], and
    then `done(low, images)`. Which could not be, and are blank; None where not all have the size."""
    count, (channels, *plane) = len(data.labels), size
    blank = torch.from_numpy(flat(data.mean)).expand(size)
    bad: dict[int, ImageError] = {}

    def make(low: int) -> bool:
        made = []
        for index in range(low, min(low + _SOME, count)):
            try:
                image = data.decoded(index)
            except ImageError as error:
                bad[index] = error
                image = blank
            if image.shape != size:
                return False
            made.append(image)
        images = room(low, low + len(made))
        # Plane after plane: torch.stack would first make a view of each image.
        torch.cat(made, out=images.view(len(made) * channels, *plane))
        done(low, images)
        return True

    with ThreadPoolExecutor(cores(), "decode") as pool:
        for same in pool.map(make, range(0, count, _SOME)):
            beat()
            if not same:
                pool.shutdown(cancel_futures=True)
                return None
    return bad


def marked(data: Streamed, bad: Mapping[int, ImageError]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels with NO_IMAGE for those that are bad, and what to say of them. SourceError: they stop a training."""
    if not bad:
        return data.labels, ()
    first, labels = min(bad), data.labels.copy()
    if data.on_bad == "stop":
        raise SourceError(bad_image(data.where(first), bad[first], len(bad) - 1))
    labels[list(bad)] = NO_IMAGE
    return labels, (f"{len(bad):,} of {len(labels):,} images skipped; the first: {data.where(first)} {bad[first]}",)


def first_shape(data: Streamed) -> tuple[int, ...] | None:
    """Channels, height, width of the first image that can be decoded."""
    for index in range(len(data.labels)):
        try:
            return tuple(data.decoded(index).shape)
        except ImageError:
            continue
    return None
