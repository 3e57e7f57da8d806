"""Cache: a split's images where they come faster from: decoded in memory, or in a file on a disk near by."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch

from shoal.base.errors import first_line, shown_path
from shoal.base.host import cores, memory
from shoal.data.decode import decode_all, first_shape, hold, marked
from shoal.data.fingerprint import fingerprint
from shoal.data.image import ImageError
from shoal.data.source import Held, SourceError, Streamed
from shoal.data.store import FORM, Filling, Store, Stored

_SOME = 64
"""Images that a thread copies before it asks for more."""
_LOOKED_AT = 100
"""Images, evenly spread, that tell whether all have one size."""


def in_memory(data: Streamed, most: int, workers: int) -> Held | Streamed:
    """The images decoded once, where they have one size, take at most `most` bytes, and fit beside those of the other
    workers of this host; else as they are. SourceError: as `hold`."""
    size = data.shape if data.shape[1] else first_shape(data)
    if size is None:
        return data
    need = len(data.labels) * int(np.prod(size))
    here, free = memory() or (need * workers, need)
    each = f"{_size(need)} for each of {workers} workers here" if workers > 1 else _size(need)
    if need > most:
        data.told = f"decoded anew each time: {_size(need)} are more than data.memory_gib holds"
    elif need > free or need * workers > here:
        data.told = f"decoded anew each time: {each}, {_size(free)} are free"
    elif (held := hold(data, size)) is not None:
        held.told = f"decoded once and held: {each}, {_size(free)} were free"
        return held
    else:
        data.told = "decoded anew each time: they have several sizes"
    return data


def in_file(data: Streamed, folder: Path) -> Stored | Streamed:
    """The images from a file in `folder`, which all workers of a host and all later trainings on them share: pixels
    where they have one size, else their encoded bytes. The first to come makes it, the others wait.

    SourceError: too little space, before anything is written; images that cannot be decoded, unless they are skipped.
    """
    words = (fingerprint(data), data.version, data.shape, FORM)
    place = folder / hashlib.sha256(repr(words).encode()).hexdigest()[:32]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(place.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            store = Store.at(place) or _made(data, place)
    except OSError as error:
        told = error.strerror or first_line(error)
        raise SourceError(f"{shown_path(folder)}: images cannot be kept here: {told} (data.cache_path)") from None
    found = store.pixels(data) if store.shape[1] else store.encoded(data)
    found.told = f"read from {shown_path(store.path)}, {_size(store.nbytes)} for all workers here"
    return found


def _made(data: Streamed, place: Path) -> Store:
    for left in place.parent.glob(f".{place.name}.*.aside"):  # by one that was killed
        left.unlink()
    size = _one_size(data)
    if size is None or not _pixels(data, place, size):
        _copies(data, place)
    store = Store.at(place)
    if store is None:
        raise SourceError(f"{shown_path(place.parent)}: what was just written here cannot be read (data.cache_path)")
    return store


def _one_size(data: Streamed) -> tuple[int, ...] | None:
    """Channels, height and width that all images seem to have."""
    if data.shape[1]:
        return data.shape
    sizes = set()
    for index in np.linspace(0, len(data.labels) - 1, _LOOKED_AT).astype(np.int64).tolist():
        with suppress(ImageError):
            sizes.add(tuple(data.decoded(index).shape))
    return sizes.pop() if len(sizes) == 1 else None


def _pixels(data: Streamed, place: Path, size: tuple[int, ...]) -> bool:
    """False where the images have several sizes after all."""
    ends = np.arange(1, len(data.labels) + 1, dtype=np.int64) * int(np.prod(size))
    with _filling(place, ends, "as pixels") as filling:

        def room(low: int, high: int) -> torch.Tensor:
            return torch.empty(high - low, *size, dtype=torch.uint8)

        def put(low: int, images: torch.Tensor) -> None:
            for number, image in enumerate(images.numpy().reshape(len(images), -1)):
                filling.put(low + number, image.data)

        bad = decode_all(data, size, room, put)
        if bad is None:
            return False
        marked(data, bad)  # before it is kept: bad images may stop it
        filling.seal(size, bad)
        return True


def _copies(data: Streamed, place: Path) -> None:
    def sizes_from(low: int) -> list[int]:
        """0 of an image that cannot be read, which is left to those who come to train on it."""
        found = []
        for index in range(low, min(low + _SOME, len(data.labels))):
            try:
                found.append(data.nbytes(index))
            except ImageError:
                found.append(0)
        return found

    def copy(low: int) -> None:
        for index in range(low, min(low + _SOME, len(data.labels))):
            if not sizes[index]:
                continue
            row = data.read(index)
            if len(row) != sizes[index]:
                told = f"had {sizes[index]} bytes, and a moment later {len(row)}; start again when it is whole"
                raise SourceError(f"{data.where(index)} {told}")
            filling.put(index, row)

    lows = range(0, len(data.labels), _SOME)
    with ThreadPoolExecutor(4 * cores(), "copy") as pool:  # most of the time they wait for a disk or a network
        sizes = [size for some in pool.map(sizes_from, lows) for size in some]
        with _filling(place, np.cumsum(sizes, dtype=np.int64), "of several sizes, as they are") as filling:
            for _ in pool.map(copy, lows):
                pass
            filling.seal((3, 0, 0), {})


@contextmanager
def _filling(place: Path, ends: np.ndarray, how: str) -> Iterator[Filling]:
    """SourceError: too little space."""
    folder, need, free = place.parent, int(ends[-1]), shutil.disk_usage(place.parent).free
    if need + 12 * len(ends) > free:
        before = sum(file.stat().st_size for file in folder.glob("*.images"))
        others = f", {_size(before)} are kept there by earlier trainings" if before else ""
        raise SourceError(
            f"{shown_path(folder)}: {len(ends):,} images {how} take {_size(need)}, {_size(free)} are free{others}; "
            "data.cache_path names another disk, data.cache=none keeps none"
        )
    told = (
        f"data.cache: keeps {len(ends):,} images {how} in {shown_path(folder)}: {_size(need)}, {_size(free)} are free"
    )
    print(told, file=sys.stderr, flush=True)
    with Filling(place, ends) as filling:
        yield filling


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:,.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:,.1f} MiB"
