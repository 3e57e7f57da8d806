"""Journal: how far the packing of a .rec has come, kept beside it, so that the same command can go on from there."""

from __future__ import annotations

import hashlib
import os
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from shoal.data.packing import Packing
from shoal.data.recordio import Writer

_LOOKED_AT = np.dtype([("end", "<u8"), ("crc", "<u4")])
"""Of each image, in the packing's order: where its record ends, and its sum; of a bad one what the one before has."""
_EVERY_S = 5.0


class Journal:
    """Writes the records of a packing, and what it takes to go on after an interruption. A context manager.

    What it says is on the disk lies there: records are flushed before the journal names them.
    """

    def __init__(self, packing: Packing, folder: Path) -> None:
        """folder: where an earlier run may have left its journal and records."""
        self._path, self._rec = folder / f"{packing.dst.stem}.journal", folder / packing.dst.name
        there = self._path.exists() and self._rec.exists()
        entries = np.fromfile(self._path, _LOOKED_AT) if there else np.empty(0, _LOOKED_AT)
        self._begin(entries[entries["end"] <= self._rec.stat().st_size] if there else entries)

    def _begin(self, entries: np.ndarray) -> None:
        good = np.diff(entries["end"], prepend=np.uint64(0)) > 0
        self.good = array("B", good.astype(np.uint8).tobytes())
        """Of each image that was looked at: whether it was packed."""
        self._writer = Writer(self._rec, entries["end"][good].tolist(), entries["crc"][good].tolist())
        self._file = open(self._path, "r+b" if len(entries) else "wb")  # noqa: SIM115
        self._at = self._file.truncate(entries.nbytes)
        self._new: list[tuple[int, int]] = []
        self._saved = time.monotonic()

    def cut(self, count: int) -> None:
        """Forgets all images but the first `count`."""
        self._file.close()
        self._writer.close()
        self._begin(np.fromfile(self._path, _LOOKED_AT, count))

    @property
    def records(self) -> int:
        return len(self._writer.ends)

    def add(self, record: bytes | None) -> None:
        """What came of the next image; None: it is bad."""
        if record is not None:
            self._writer.write(record)
        end, crc = (self._writer.ends[-1], self._writer.sums[-1]) if self.records else (0, 0)
        self._new.append((end, crc))
        self.good.append(record is not None)
        if time.monotonic() - self._saved > _EVERY_S:
            self._save()

    def _save(self) -> None:
        self._writer.sync()
        self._file.seek(self._at)  # where it stands, if an interruption fell into the last time
        self._file.write(np.array(self._new, _LOOKED_AT).tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._at, self._new, self._saved = self._file.tell(), [], time.monotonic()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._save()
        finally:
            self._file.close()
            (self._writer.close if kind else self._writer.finish)()


def fingerprint(packings: Sequence[Packing], on_bad: str) -> str:
    """What decides the bytes that are packed: images and their files' sizes and times, labels, names, sizes."""
    digest = hashlib.blake2b(digest_size=16)
    for packing in packings:
        digest.update(repr((packing.dst.name, packing.recoding, packing.classes, len(packing.images))).encode())
        for image in packing.images:
            try:
                status = os.stat(image.path)
                stamp = (status.st_size, status.st_mtime_ns)
            except OSError:
                stamp = None
            digest.update(repr((os.fsencode(image.path), image.label, image.more, stamp, on_bad)).encode())
    return digest.hexdigest()
