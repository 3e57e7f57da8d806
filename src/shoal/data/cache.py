"""Cache: a split's images where they come faster from: decoded in memory, or in a file on a disk near by."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from shoal.base.beats import beat, heard
from shoal.base.errors import first_line, shown_path
from shoal.base.host import cores, memory
from shoal.data.decode import decode_all, first_shape, hold, marked
from shoal.data.fingerprint import fingerprint
from shoal.data.image import ImageError
from shoal.data.source import Held, SourceError, Streamed
from shoal.data.store import FORM, Filling, Store, Stored

T = TypeVar("T")

_SOME = 64
"""Images that a thread copies before it asks for more."""
_LOOKED_AT = 100
"""Images, evenly spread, that tell whether all have one size."""
_LOOK_S = 0.1
"""How often one who waits for another looks."""


def in_memory(data: Streamed, most: int, workers: int, *, resized: bool = True) -> Held | Streamed:
    """The images decoded once, where they have one size, take at most `most` bytes, and fit beside those of the other
    workers of this host; else as they are. SourceError: as `hold`.

    resized: each is made one size when it is trained on. Else they are held wherever they fit, since only held images
    are known to have one.
    """
    beside = workers if resized or data.shape[1] else 1
    size = data.shape if data.shape[1] else first_shape(data)
    if size is None:
        return data
    need = len(data.labels) * int(np.prod(size))
    _, free = memory() or (0, need * workers)
    each = f"{_size(need)} for each of {workers} workers here" if workers > 1 else _size(need)
    if need > most:
        data.told = f"decoded anew each time: {_size(need)} are more than data.memory_gib holds"
    elif need * beside > free:
        data.told = f"decoded anew each time: {each}, {_size(free)} are free"
    elif (held := hold(data, size)) is not None:
        held.told, held.origin = f"decoded once and held: {each}, {_size(free)} were free", data
        return held
    else:
        data.told = "decoded anew each time: they have several sizes"
    return data


def in_file(data: Streamed, folder: Path, *, decoder: str | None = None, resized: bool = True) -> Stored | Streamed:
    """The images from a file in `folder`, which all workers of a host and all later trainings on them share: pixels
    where they have one size, else their encoded bytes. The first to come makes it, the others wait.

    decoder: what made the pixels, where they are its own. resized: each is made one size when it is trained on; else
    images of several sizes are not copied, as nobody can train on them.
    SourceError: too little space, before anything is written; images that cannot be decoded, unless they are skipped.
    """
    words = (fingerprint(data), data.version, data.shape, decoder, FORM)
    place = folder / hashlib.sha256(repr(words).encode()).hexdigest()[:32]
    try:
        store = Store.at(place) or _by_one(data, place, copies=resized)
    except OSError as error:
        told = error.strerror or first_line(error)
        raise SourceError(f"{shown_path(folder)}: images cannot be kept here: {told} (data.cache_path)") from None
    if store is None:
        data.told = "not kept: they have several sizes"
        return data
    found = store.pixels(data) if store.shape[1] else store.encoded(data)
    found.told = f"read from {shown_path(store.path)}, {_size(store.nbytes)} for all workers here"
    return found


def _by_one(data: Streamed, place: Path, *, copies: bool) -> Store | None:
    """Made by the first to come, while the others wait; as `_made`."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_suffix(".lock"), "a") as lock:
        _take(lock.fileno())
        with heard(lambda: os.utime(lock.fileno())):
            return Store.at(place) or _made(data, place, copies=copies)


def _take(lock: int) -> None:
    """Waits for a lock. A beat where its holder has had one, so that a holder that hangs is found."""
    seen = 0
    while True:
        with suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (now := os.fstat(lock).st_mtime_ns) != seen:
            seen = now
            beat()
        time.sleep(_LOOK_S)


def _made(data: Streamed, place: Path, *, copies: bool) -> Store | None:
    """copies: images of several sizes are kept as they are; else None."""
    for left in (place.with_suffix(".images"), *place.parent.glob(f".{place.name}.*.aside")):  # by one that was killed
        left.unlink(missing_ok=True)
    size = _one_size(data)
    if size is None or not _pixels(data, place, size):
        if not copies:
            return None
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
        beat()
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
    bad: dict[int, ImageError] = {}
    count = len(data.labels)

    def sizes_from(low: int) -> list[int]:
        """0 of an image that cannot be read."""
        found = []
        for index in range(low, min(low + _SOME, count)):
            try:
                found.append(data.nbytes(index))
            except ImageError as error:
                bad[index] = error
                found.append(0)
        return found

    def copy(low: int) -> None:
        for index in range(low, min(low + _SOME, count)):
            if not sizes[index]:
                continue
            try:
                row = data.read(index)
            except ImageError as error:
                bad[index] = error
                continue
            if len(row) != sizes[index]:
                told = f"had {sizes[index]} bytes, and a moment later {len(row)}; start again when it is whole"
                raise SourceError(f"{data.where(index)} {told}")
            filling.put(index, row)

    sizes = [size for some in _each(sizes_from, count) for size in some]
    marked(data, bad)  # bad images may stop it
    with _filling(place, np.cumsum(sizes, dtype=np.int64), "of several sizes, as they are") as filling:
        for _ in _each(copy, count):
            pass
        marked(data, bad)
        filling.seal((3, 0, 0), bad)


def _each(work: Callable[[int], T], count: int) -> Iterator[T]:
    """What `work` makes of each `_SOME` of `count` images, in their order."""
    with ThreadPoolExecutor(4 * cores(), "copy") as pool:  # most of the time they wait for a disk or a network
        for made in pool.map(work, range(0, count, _SOME)):
            beat()
            yield made


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
