"""RecordIO: MXNet's file of many records, read and written.

A record is a chain of parts. A part is the magic word, a word of (3 bits kind, 29 bits length), the bytes, and zeros up
to a multiple of 4. Bytes that hold the magic word at a multiple of 4 are cut there: the word is left out, and the parts
are marked first (1), middle (2) and last (3); a record in one part is marked 0. So the magic word at a multiple of 4
always begins a part. A record of an image begins with a Header, followed by its labels if it has several, and the file.

Only opening a file looks at it through a memory map: one that is cut off under a map kills the process.
"""

from __future__ import annotations

import mmap
import os
import struct
import weakref
import zlib
from array import array
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np

from shoal.base.errors import first_line, shown_path
from shoal.data.image import Bytes
from shoal.data.source import SourceError

MAGIC = 0xCED7230A
_MAGIC = struct.pack("<I", MAGIC)
_PART = struct.Struct("<II")
_HEADER = struct.Struct("<IfQQ")
_OPENING = struct.Struct("<III")  # of a part that begins with a header, up to its number of labels
_MOST = (1 << 29) - 1  # bytes of a part
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_LARGE = 4096  # bytes of a record above which walking from one to the next beats reading everything
_CHANGED = "the file was written into since it was opened; start again when it is whole"
_FETCHED = 1 << 17  # bytes asked for in one go: Linux leaves out what goes beyond a disk's own readahead
_WINDOW = 1 << 24  # words looked at in one go


class Header(NamedTuple):
    """What stands before the image in a record (MXNet's IRHeader)."""

    labels: tuple[float, ...]
    """One label, or as many as were packed."""
    id: int = 0
    id2: int = 0


def pack(header: Header, image: bytes) -> bytes:
    """A record of an image, as MXNet packs it."""
    if len(header.labels) == 1:
        return _HEADER.pack(0, header.labels[0], header.id, header.id2) + image
    labels = np.asarray(header.labels, "<f4")
    return _HEADER.pack(len(labels), 0.0, header.id, header.id2) + labels.tobytes() + image


def sums_of(rec: Path) -> Path:
    """The file beside a .rec that holds the CRC-32 of each record: from its first byte to the next record's, uint32 [n]
    in numpy's format."""
    return rec.with_suffix(".crc.npy")


class Writer:
    """Writes a .rec, and beside it, when it is done, its .idx and its sums. A context manager."""

    def __init__(self, path: Path, ends: Sequence[int] = (), sums: Sequence[int] = ()) -> None:
        """ends, sums: of the records that the file has already, to go on behind them; absent: it begins anew."""
        self.ends, self.sums = array("Q", ends), array("I", sums)
        self._path = path
        self._file = open(path, "r+b" if self.ends else "wb")  # noqa: SIM115  (closed with the writer)
        self._file.truncate(self._file.seek(self.ends[-1] if self.ends else 0))

    def write(self, record: bytes) -> None:
        """Appends a record; its number names it in the .idx."""
        crc, end = 0, self.ends[-1] if self.ends else 0
        parts = _split(record)
        for number, part in enumerate(parts):
            first, last = number == 0, number == len(parts) - 1
            kind = (_WHOLE if last else _FIRST) if first else (_LAST if last else _MIDDLE)
            if len(part) > _MOST:
                raise ValueError(f"a part of {len(part)} bytes; RecordIO holds at most {_MOST}")
            written = _PART.pack(MAGIC, kind << 29 | len(part)) + part + bytes(-len(part) % 4)
            self._file.write(written)
            crc, end = zlib.crc32(written, crc), end + len(written)
        self.ends.append(end)
        self.sums.append(crc)

    def sync(self) -> None:
        """Makes what was written so far survive a power cut."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Closes the file, and writes what lies beside it."""
        self.close()
        starts = [0, *self.ends[:-1]] if self.ends else []
        lines = (f"{number}\t{start}\n" for number, start in enumerate(starts))
        self._path.with_suffix(".idx").write_text("".join(lines), encoding="ascii")
        np.save(sums_of(self._path), np.array(self.sums, "<u4"))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (self.close if kind else self.finish)()


def _split(record: bytes) -> list[bytes]:
    """The record cut at every magic word that lies at a multiple of 4 of it."""
    parts, start, at = [], 0, record.find(_MAGIC)
    while at >= 0:
        if at % 4:
            at = record.find(_MAGIC, at + 1)
            continue
        parts.append(record[start:at])
        start = at + 4
        at = record.find(_MAGIC, start)
    return [*parts, record[start:]]


def opened(path: Path) -> Records:
    """Records of a file; of one that was opened before and has not changed since, the same object."""
    stamps = []
    for file in (path, path.with_suffix(".idx")):
        try:
            status = os.stat(file)
            stamps.append((status.st_ino, status.st_mtime_ns, status.st_size))
        except OSError:
            stamps.append(None)
    return _opened(path, *stamps)


@lru_cache(maxsize=4)
def _opened(path: Path, *stamps: tuple[int, int, int] | None) -> Records:
    return Records(path)


class Records:
    """The records of a .rec in the order of the file; of an .idx beside it, those that it names.

    SourceError for every way in which the file, or the .idx, is not what it should be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._file)
            status = os.fstat(self._file)
            self._bytes = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise SourceError(f"{shown_path(path)}: is empty; a RecordIO file begins with {_hex(MAGIC)}") from None
        except OSError as error:
            raise SourceError(f"{shown_path(path)}: cannot be read ({error.strerror})") from None
        self.version = (status.st_size, status.st_mtime_ns)
        """Another one, once the file has changed."""
        if len(self._bytes) < 8:
            self._parts(0, 0)  # tells what is missing
        self._words = np.frombuffer(self._bytes, "<u4", len(self._bytes) // 4)
        index = path.with_suffix(".idx")
        self.starts = self._indexed(index) if index.is_file() else self._scanned()
        """int64 [n]: the byte at which each record begins."""
        words = self._words[self.starts // 4 + 1]
        self._ends = np.append(self.starts[1:], len(self._bytes))
        whole = words >> 29 == _WHOLE
        self._ends[whole] = self.starts[whole] + 8 + (words[whole] & _MOST)

    def __len__(self) -> int:
        return len(self.starts)

    def where(self, number: int) -> str:
        """A record as messages name it."""
        return f"{shown_path(self.path)}: record {number} at byte {self.starts[number]}"

    def read(self, number: int) -> bytes:
        """The record's bytes, its parts joined. SourceError: the file is no longer what was opened."""
        held, start = self._held(number), int(self.starts[number])
        _, word = _PART.unpack_from(held)
        if word == len(held) - 8:
            return held[8:]
        return _MAGIC.join(held[low:high] for low, high in self._parts(number, start, held)[0])

    def header(self, number: int) -> Header:
        return self._opened(number)[0]

    def image(self, number: int) -> Bytes:
        """The encoded image in the record."""
        held = self._held(number)
        _, word, several = _OPENING.unpack_from(held) if len(held) >= _OPENING.size else (0, 0, 0)
        low = _HEADER.size + 4 * several
        if low <= word == len(held) - 8:  # in one part
            return memoryview(held)[8 + low :]
        return self._opened(number)[1]

    def fetch(self, first: int, last: int) -> None:
        """Has the system read records first … last-1 into its cache, where it can, without waiting for them."""
        if hasattr(os, "posix_fadvise"):
            start, end = int(self.starts[first]), int(self._ends[min(last, len(self)) - 1])
            for low in range(start, end, _FETCHED):
                os.posix_fadvise(self._file, low, min(_FETCHED, end - low), os.POSIX_FADV_WILLNEED)

    def nbytes(self, number: int) -> int:
        """Of the encoded image."""
        head = os.pread(self._file, _OPENING.size, int(self.starts[number]))
        _, word, several = _OPENING.unpack(head) if len(head) == _OPENING.size else (0, 0, 0)
        low = _HEADER.size + 4 * several
        return word - low if low <= word <= _MOST else len(self.image(number))

    def _held(self, number: int) -> bytes:
        """The file from where the record begins up to its end."""
        held = self._span(number, int(self._ends[number]))
        magic, word = _PART.unpack_from(held)
        if magic != MAGIC or (word >> 29 == _WHOLE and word != len(held) - 8):
            raise SourceError(f"{self.where(number)}: begins with {held[:8].hex(' ')}; {_CHANGED}")
        return held

    def _span(self, number: int, end: int) -> bytes:
        """The file from where the record begins up to byte `end`."""
        start = int(self.starts[number])
        try:
            held = os.pread(self._file, end - start, start)
        except OSError as error:
            raise SourceError(f"{self.where(number)}: cannot be read ({error.strerror})") from None
        if len(held) < end - start:
            left = f"of {end - start} bytes {len(held)} are left"
            raise SourceError(f"{self.where(number)}: the file was cut off since it was opened, {left}; copy it again")
        return held

    def _opened(self, number: int) -> tuple[Header, bytes]:
        record = self.read(number)
        if len(record) < _HEADER.size:
            raise SourceError(f"{self.where(number)}: {_short(len(record))}")
        several, label, identity, identity2 = _HEADER.unpack_from(record)
        end = _HEADER.size + 4 * several
        if end > len(record):
            raise SourceError(f"{self.where(number)}: {several} labels announced, which do not fit {len(record)} bytes")
        labels = struct.unpack_from(f"<{several}f", record, _HEADER.size) if several else (label,)
        return Header(labels, identity, identity2), record[end:]

    def labels(self, column: int = 0) -> np.ndarray:
        """float32 [n]: one label of each record; `column` picks from those that have several."""
        starts, words = self.starts // 4, self._words
        kinds, lengths = words[starts + 1] >> 29, words[starts + 1] & _MOST
        plain = (kinds == _WHOLE) & (lengths >= _HEADER.size)
        several = np.zeros(len(starts), np.int64)
        several[plain] = words[starts[plain] + 2]
        held = np.zeros(len(starts), np.float32)
        one = plain & (several == 0) & (column == 0)
        held[one] = words[starts[one] + 3].view(np.float32)
        many = plain & (several > column) & (_HEADER.size + 4 * several <= lengths)
        held[many] = words[starts[many] + 2 + _HEADER.size // 4 + column].view(np.float32)
        for number in np.flatnonzero(~(one | many)).tolist():  # in several parts, or with a fault to tell
            labels = self.header(number).labels
            if column >= len(labels):
                count = f"{len(labels)} label{'s' if len(labels) > 1 else ''}"
                raise SourceError(
                    f"{self.where(number)}: has {count}; data.label: {column} asks for number {column + 1}"
                )
            held[number] = labels[column]
        return held

    def damage(self) -> list[str]:
        """What is not as it was packed, by the sums beside the file; nothing where there are none."""
        file = sums_of(self.path)
        if not file.is_file():
            return []
        try:
            sums = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as error:
            return [f"{shown_path(file)}: cannot be read ({first_line(error)}); remove it, or pack anew"]
        if sums.shape != (len(self),) or sums.dtype != np.dtype("<u4"):
            return [f"{shown_path(file)}: does not belong to {len(self):,} records; remove it, or pack anew"]
        ends = np.append(self.starts[1:], len(self._bytes))
        return [
            f"{self.where(number)}: its bytes are not those that were packed (CRC-32); copy the file again"
            for number, end in enumerate(ends.tolist())
            if zlib.crc32(self._span(number, end)) != sums[number]
        ]

    # Finding the records

    def _scanned(self) -> np.ndarray:
        """Where records begin. A chain of parts without gaps is checked in one go; a fault is then looked for."""
        first = self._words[1] & _MOST if self._words[0] == MAGIC else _LARGE
        if first < _LARGE and len(self._bytes) % 4 == 0:
            parts = _found(self._words)
            kinds, lengths = self._words[parts + 1] >> 29, (self._words[parts + 1] & _MOST).astype(np.int64)
            ends = parts + 2 + (lengths + 3) // 4
            chained = np.array_equal(ends[:-1], parts[1:]) and ends[-1] == len(self._words)
            opens = (kinds == _WHOLE) | (kinds == _FIRST)
            closes = (kinds == _WHOLE) | (kinds == _LAST)
            if chained and kinds.max() <= _LAST and closes[-1] and np.array_equal(opens[1:], closes[:-1]):
                return parts[opens] * 4
        return self._walked()

    def _walked(self) -> np.ndarray:
        """As `_scanned`, from part to part."""
        starts, at, size = [], 0, len(self._bytes)
        read, bound, mapped = _PART.unpack_from, size - 8, self._bytes
        while at < size:
            magic, word = read(mapped, at) if at <= bound else (0, 0)
            if magic != MAGIC or word > _MOST or at + 8 + word > size:
                _, end = self._parts(len(starts), at)  # several parts, or the fault
            else:
                end = at + 8 + (word + 3 & ~3)
            starts.append(at)
            at = end
        return np.array(starts, np.int64)

    def _parts(self, number: int, start: int, held: bytes | None = None) -> tuple[list[tuple[int, int]], int]:
        """[low, high) of the bytes of each part of the record at `start`, and where the next one begins; in the
        whole file, or in `held`, the record alone."""
        parts: list[tuple[int, int]] = []
        whole, base = (self._bytes, 0) if held is None else (held, start)
        at, size = start - base, len(whole)
        while True:
            where = f"{shown_path(self.path)}: record {number} at byte {start}"
            place = f", part {len(parts)} at byte {at + base}" if parts else ""
            if size - at < 8:
                what = (
                    f"its part {len(parts)} is missing" if parts else f"only {size - at} of its first 8 bytes are there"
                )
                raise SourceError(f"{where}: the file is cut off at byte {size + base}: {what}; copy it again")
            magic, word = _PART.unpack_from(whole, at)
            kind, length = word >> 29, word & _MOST
            if magic != MAGIC:
                hint = "the file is damaged or no RecordIO file" if at + base else "this is no RecordIO file"
                raise SourceError(f"{where}{place}: {_hex(magic)} stands where {_hex(MAGIC)} should; {hint}")
            if kind not in ((_MIDDLE, _LAST) if parts else (_WHOLE, _FIRST)):
                wanted = "a further part (2 or 3)" if parts else "a whole record (0) or a first part (1)"
                raise SourceError(f"{where}{place}: marked {kind} where {wanted} should begin; the file is damaged")
            low, high = at + 8, at + 8 + length
            if high > size:
                left = f"{length} bytes announced, {size - low} left"
                raise SourceError(f"{where}{place}: the file is cut off at byte {size + base}: {left}; copy it again")
            parts.append((low, high))
            at = low + (length + 3 & ~3)
            if kind in (_WHOLE, _LAST):
                return parts, at

    def _indexed(self, index: Path) -> np.ndarray:
        """Where the records of an .idx begin, in the order of the file; every one is looked at."""
        starts = _offsets(index)
        if not len(starts):
            raise SourceError(f"{shown_path(index)}: names no record; without it the .rec itself is searched")
        order = np.argsort(starts, kind="stable")
        sorted_starts = starts[order]
        inside = (sorted_starts >= 0) & (sorted_starts % 4 == 0) & (sorted_starts <= len(self._bytes) - 8)
        words = np.where(inside, sorted_starts // 4, 0)
        kinds, lengths = self._words[words + inside] >> 29, self._words[words + inside] & _MOST
        good = inside & (self._words[words] == MAGIC) & (kinds <= _FIRST)
        whole = good & (kinds == _WHOLE) & (sorted_starts + 8 + lengths <= len(self._bytes))
        twice = np.zeros(len(starts), bool)
        twice[1:] = sorted_starts[1:] == sorted_starts[:-1]
        for place in np.flatnonzero(~good | twice)[:1].tolist():
            line, start = int(order[place]) + 1, int(sorted_starts[place])
            what = "was named before" if good[place] else "begins no record"
            raise SourceError(
                f"{shown_path(index)}:{line}: byte {start} of {shown_path(self.path.name)} {what}; "
                "remove the .idx (the .rec itself is then searched) or make it anew"
            )
        for number in np.flatnonzero(~whole).tolist():
            self._parts(number, int(sorted_starts[number]))
        return sorted_starts


def _found(words: np.ndarray) -> np.ndarray:
    """int64: where the magic word stands. In windows, so that a large file does not need a mask of its size."""
    found = [
        np.flatnonzero(words[low : low + _WINDOW] == np.uint32(MAGIC)) + low
        for low in range(0, len(words) - 1, _WINDOW)
    ]
    parts = np.concatenate(found)
    return parts[parts < len(words) - 1]


def _offsets(index: Path) -> np.ndarray:
    """int64 [n]: the second column of an .idx."""
    try:
        rows = index.read_bytes().split()
    except OSError as error:
        raise SourceError(f"{shown_path(index)}: cannot be read ({error.strerror})") from None
    try:
        if len(rows) % 2 == 0:
            return np.array(rows[1::2], np.int64)
    except (ValueError, OverflowError):
        pass
    for number, line in enumerate(index.read_bytes().splitlines(), 1):
        columns = line.split()
        if columns and (len(columns) != 2 or not columns[1].isdigit() or len(columns[1]) > 18):
            text = line[:40].decode("utf-8", "backslashreplace")
            raise SourceError(f"{shown_path(index)}:{number}: expected `key TAB byte`, got {text!r}")
    raise SourceError(f"{shown_path(index)}: expected lines of `key TAB byte`")


def _hex(word: int) -> str:
    return f"0x{word:08x}"


def _short(length: int) -> str:
    return f"{length} bytes, fewer than the {_HEADER.size} of an image record's header"
