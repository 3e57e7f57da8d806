"""Packed: what was planned to be packed, written whole or not at all; what was interrupted, gone on with."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Literal

from shoal.base.errors import ShoalError, UsageError, shown_path
from shoal.base.files import folder_whole, place, sync_file, write_whole
from shoal.base.host import cores
from shoal.data.encoded import read_file
from shoal.data.image import ImageError, decode
from shoal.data.journal import Journal, fingerprint
from shoal.data.packing import Packing, Picked, check_free
from shoal.data.recordio import Header, pack

OnBad = Literal["stop", "skip"]

_NOT_LINKED = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES}
"""Why a hard link cannot be made where a copy can."""


@dataclass(frozen=True)
class Packed:
    """What came of it."""

    images: int
    classes: int
    bad: int
    copied: int
    """Images that could not be linked."""


def write(
    packings: Sequence[Packing],
    on_bad: OnBad = "stop",
    *,
    threads: int | None = None,
    kept: Callable[[int], None] = lambda count: None,
    done: Callable[[int], None] = lambda count: None,
    told: Callable[[str], None] = lambda line: None,
) -> tuple[Packed, ...]:
    """Writes them, all wholly or not at all. threads: as many decode, absent: one per core.

    `kept` hears how many images an interrupted run had looked at, `done` how many are, `told` of each bad one.

    What an interrupted run (KeyboardInterrupt, SystemExit, kill) had written of a .rec is kept aside, and gone on with.
    ShoalError: an image that cannot be decoded, unless such are to be skipped; a disk that takes no more.
    """
    looking = _Looking(on_bad, threads or cores(), kept, done, told)
    try:
        if packings[0].records:
            return _write_records(packings, looking)
        return tuple(_write_folder(packing, looking) for packing in packings)
    except OSError as error:
        reason = error.strerror or str(error)
        where = shown_path(packings[0].dst)
        raise ShoalError(f"{where}: cannot be written ({reason}); nothing was left there") from None


def aside_of(packings: Sequence[Packing]) -> Path:
    """Where records lie until they are whole."""
    dst = packings[0].dst
    return dst.with_name(f".{dst.name}.packing")


class _Looking:
    """Looks at each image once, by threads, a few ahead, and counts."""

    def __init__(
        self,
        on_bad: OnBad,
        threads: int,
        kept: Callable[[int], None],
        done: Callable[[int], None],
        told: Callable[[str], None],
    ) -> None:
        self.on_bad: OnBad = on_bad
        self._threads, self._kept, self._done, self._told = threads, kept, done, told
        self._looked_at = self._bad = 0

    def images(self, packing: Packing, first: int = 0) -> Iterator[tuple[Picked, bytes | None]]:
        """The images from the `first` on, with the bytes to be packed; None: it is bad. Where such stop all, none is
        told after a bad one: nothing will be kept, the others are only looked at."""
        for image, data in self._made(packing, packing.images[first:]):
            if isinstance(data, ImageError):
                self.bad(image, data)
            if not self._bad or self.on_bad == "skip":
                yield image, None if isinstance(data, ImageError) else data
            self._looked_at += 1
            self._done(self._looked_at)

    def go_on(self, packing: Packing, journal: Journal) -> None:
        """Counts the images that an earlier run looked at, and tells again of the bad ones; up to one that is bad no
        more."""
        for number, good in enumerate(journal.good):
            if not good and isinstance(made := _made_of(packing.images[number], packing), ImageError):
                self.bad(packing.images[number], made)
            elif not good:
                journal.cut(number)
                break
        if journal.good:
            self._looked_at += len(journal.good)
            self._kept(self._looked_at)

    def bad(self, image: Picked, error: ImageError) -> None:
        self._bad += 1
        self._told(f"{shown_path(image.path)} {error}")

    def end(self, good: int) -> None:
        """ShoalError: these images are not to be packed."""
        if self._bad and self.on_bad == "stop":
            wrong = f"{self._bad:,} of {self._looked_at:,} images cannot be decoded"
            raise ShoalError(f"{wrong}; nothing was written: mend or remove them, or leave them out with --on-bad skip")
        if not good:
            raise ShoalError(f"none of {self._looked_at:,} images can be decoded; nothing was written")

    def _made(self, packing: Packing, images: Sequence[Picked]) -> Iterator[tuple[Picked, bytes | ImageError]]:
        pool = ThreadPoolExecutor(self._threads, "check")
        ahead: deque[tuple[Picked, Future[bytes | ImageError]]] = deque()
        try:
            for image in images:
                ahead.append((image, pool.submit(_made_of, image, packing)))
                if len(ahead) > 8 * self._threads:
                    first, made = ahead.popleft()
                    yield first, made.result()
            for first, made in ahead:
                yield first, made.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _made_of(image: Picked, packing: Packing) -> bytes | ImageError:
    """What is packed of an image, after it was decoded once; or why it cannot be."""
    try:
        data = read_file(image.path)
        pixels = decode(data)
        return packing.recoding(data, pixels) if packing.recoding else data
    except ImageError as error:
        return error


# Records


def _write_records(packings: Sequence[Packing], looking: _Looking) -> tuple[Packed, ...]:
    """.rec files, each with its .idx, its sums, and the .lst that names the classes."""
    packed = []
    with _aside(packings, looking.on_bad) as aside:
        for packing in packings:
            with Journal(packing, aside) as journal:
                looking.go_on(packing, journal)
                for image, data in looking.images(packing, len(journal.good)):
                    labels = (float(image.label), *image.more)
                    journal.add(None if data is None else pack(Header(labels, journal.records), data))
            good = list(compress(packing.images, journal.good))
            looking.end(len(good))
            _write_list(packing, good, aside / packing.dst.with_suffix(".lst").name)
            packed.append(Packed(len(good), len({image.label for image in good}), len(packing.images) - len(good), 0))
        for packing in packings:
            check_free(packing.dst)  # hours may have gone by
        place(aside, *(file for packing in packings for file in packing.files))
    return tuple(packed)


@contextmanager
def _aside(packings: Sequence[Packing], on_bad: OnBad) -> Iterator[Path]:
    """A folder for records: what an interrupted run of the same command left, or an empty one. It is kept only at an
    interruption that leaves something to go on with."""
    folder, mark = aside_of(packings), fingerprint(packings, on_bad)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:  # a file: between hosts a folder's own lock may not hold
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ShoalError(f"{shown_path(packings[0].dst)}: another `shoal data pack` is writing it") from None
        if not (folder / "of").exists() or (folder / "of").read_text() != mark:
            for file in set(folder.iterdir()) - {folder / "lock"}:
                file.unlink()
            write_whole(folder / "of", mark)
        keep = False
        try:
            yield folder
        except (KeyboardInterrupt, SystemExit, UsageError):
            keep = any(file.stat().st_size for file in folder.glob("*.journal"))
            raise
        finally:
            if not keep:
                shutil.rmtree(folder)


def _write_list(packing: Packing, images: Sequence[Picked], path: Path) -> None:
    with open(path, "wb") as lst:
        for number, image in enumerate(images):
            folder = os.fsencode(packing.classes[image.label]) + b"/" if packing.classes else b""
            name = folder + os.fsencode(os.path.basename(image.path))
            columns = [b"%d" % number, *(b"%g" % label for label in (float(image.label), *image.more)), _one_line(name)]
            lst.write(b"\t".join(columns) + b"\n")


def _one_line(name: bytes) -> bytes:
    """A .lst has no way to write a tab or a line break; its names only tell people and name classes."""
    return name.replace(b"\t", b"?").replace(b"\n", b"?").replace(b"\r", b"?")


# Folders


def _write_folder(packing: Packing, looking: _Looking) -> Packed:
    """Class folders of hard links; of copies where links cannot be."""
    assert packing.classes is not None
    good, copied = [], 0
    with folder_whole(packing.dst) as aside:
        for image, data in looking.images(packing):
            if data is None:
                continue
            good.append(image.label)
            folder = aside / packing.classes[image.label]
            folder.mkdir(exist_ok=True)
            new = folder / os.path.basename(image.path)
            old = os.path.realpath(image.path)  # of a link the file: links may lead elsewhere from here
            try:
                os.link(old, new)
            except OSError as error:
                if error.errno not in _NOT_LINKED:
                    raise
                shutil.copyfile(old, new)
                sync_file(new)
                copied += 1
        looking.end(len(good))
    return Packed(len(good), len(set(good)), len(packing.images) - len(good), copied)
