"""Store: rows of bytes in one file, each with its sum; whole or not there, and read by all processes of a host."""

from __future__ import annotations

import copy
import errno
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from shoal.base.errors import shown_path
from shoal.base.files import write_whole
from shoal.data.decode import marked
from shoal.data.image import Bytes, ImageError
from shoal.data.source import SourceError, Streamed

FORM = 1
"""Of the files; another number when that changes."""


class Store:
    """The rows of a split. They are read, not mapped into memory: a map of a file that is cut off kills the process."""

    def __init__(self, path: Path, shape: tuple[int, int, int], ends: np.ndarray, sums: np.ndarray, bad: dict) -> None:
        self.path = path
        self.shape = shape
        """Of an image's pixels, uint8 [C, H, W]; 3, 0, 0 where a row is an encoded image."""
        self._ends, self._sums, self._bad = ends, sums, {int(index): ImageError(text) for index, text in bad.items()}
        self._sound = np.zeros(len(ends), bool)  # what was compared with its sum before
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  (as long as the split is used)

    @staticmethod
    def at(place: Path) -> Store | None:
        """What lies there, if it is whole; its rows are compared with their sums when they are read first."""
        path = place.with_suffix(".images")
        try:
            with np.load(place.with_suffix(".npz"), allow_pickle=False) as held:  # a zip, with a CRC-32 of each array
                ends, sums, told = held["ends"], held["sums"], json.loads(held["told"].tobytes())
            store = Store(path, (told["shape"][0], told["shape"][1], told["shape"][2]), ends, sums, told["bad"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        return store if os.path.getsize(path) == store.nbytes else None

    @property
    def nbytes(self) -> int:
        return int(self._ends[-1])

    def size(self, index: int) -> int:
        """Bytes of a row."""
        return int(self._ends[index] - (self._ends[index - 1] if index else 0))

    def into(self, index: int, row: memoryview) -> None:
        """Fills `row`, of the row's size. SourceError: it is not what was written."""
        try:
            got = os.preadv(self._file.fileno(), [row], int(self._ends[index]) - len(row))
        except OSError as error:
            raise SourceError(f"{self._where(index)} cannot be read ({error.strerror}); remove the file") from None
        if got != len(row) or not (self._sound[index] or zlib.crc32(row) == self._sums[index]):
            raise SourceError(
                f"{self._where(index)} is not as it was written (CRC-32); remove the file, and it is made anew"
            )
        self._sound[index] = True

    def _where(self, index: int) -> str:
        return f"{shown_path(self.path)}: image {index} at byte {int(self._ends[index]) - self.size(index)}"

    def pixels(self, data: Streamed) -> Stored:
        """As the images of `data`. SourceError: some that cannot be decoded, if they stop a training."""
        return Stored(self, data, *marked(data, self._bad))

    def encoded(self, data: Streamed) -> Streamed:
        """`data`, read from here; what could not be read then is read where it was."""

        def read(index: int) -> Bytes:
            row = bytearray(0 if index in self._bad else self.size(index))
            if not row:
                return data.read(index)
            self.into(index, memoryview(row))
            return memoryview(row)

        stored = copy.copy(data)
        stored.read = read
        return stored


class Stored:
    """Pixels over a Store."""

    def __init__(self, store: Store, data: Streamed, labels: np.ndarray, notes: tuple[str, ...]) -> None:
        self._store = store
        self.labels, self.classes, self.shape = labels, data.classes, store.shape
        self.mean, self.std, self.notes = data.mean, data.std, notes
        self.told, self.origin = "", data

    def pixels(self, indices: np.ndarray) -> np.ndarray:
        images = np.empty((len(indices), *self.shape), np.uint8)
        for row, index in zip(images.reshape(len(indices), -1), indices.tolist(), strict=True):
            self._store.into(index, row.data)
        return images


class Filling:
    """A Store in the making, by many threads: its space is set apart at once, and gone unless it is sealed."""

    def __init__(self, place: Path, ends: np.ndarray) -> None:
        """ends: int64 [n], where each row ends. OSError: there is no space."""
        self._place, self._ends, self._sums = place, ends, np.zeros(len(ends), np.uint32)
        self._aside = place.with_name(f".{place.name}.{os.getpid()}.aside")

    def __enter__(self) -> Filling:
        self._file = os.open(self._aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _set_apart(self._file, int(self._ends[-1]))
        except BaseException:
            self.__exit__()
            raise
        return self

    def put(self, index: int, row: Bytes) -> None:
        self._sums[index] = zlib.crc32(row)
        left, at = memoryview(row), int(self._ends[index]) - len(row)
        while left:
            written = os.pwrite(self._file, left, at)
            left, at = left[written:], at + written

    def seal(self, shape: tuple[int, ...], bad: Mapping[int, ImageError]) -> None:
        """Gives it its name. shape, bad: as a Store has them."""
        told = {"shape": shape, "bad": {index: str(error) for index, error in bad.items()}}
        held = io.BytesIO()
        np.savez(held, ends=self._ends, sums=self._sums, told=np.frombuffer(json.dumps(told).encode(), np.uint8))
        os.fsync(self._file)
        os.replace(self._aside, self._place.with_suffix(".images"))
        write_whole(self._place.with_suffix(".npz"), held.getbuffer())

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        with suppress(FileNotFoundError):
            self._aside.unlink()


def _set_apart(file: int, nbytes: int) -> None:
    """Gives a file its length, and the space for it where the file system can say so beforehand."""
    os.truncate(file, nbytes)
    if nbytes and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, nbytes)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
