"""Tree: the image files below a folder, which may be millions; listed once, and kept until a folder changes."""

from __future__ import annotations

import hashlib
import io
import os
import time
import zipfile
from array import array
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np

from shoal.base.beats import beat
from shoal.base.errors import shown_path
from shoal.base.files import cache_folder, write_whole
from shoal.data.source import SourceError
from shoal.data.sources.folder import ENDINGS, is_folder

KEPT_FROM = 10_000
"""Images from which a listing is kept: fewer are listed in a moment."""
_ENDINGS = tuple(ending.encode() for ending in ENDINGS)
_FORM = "1"  # of the file
_STILL_NS = 3 * 10**9  # a folder changed so shortly before may change again at the same time (FAT's clock ticks in 2 s)


class Tree(Sequence[str]):
    """Paths of the images below `root`, in the order of their bytes, folder by folder; what is hidden does not count.

    The names lie one after another in one array: as many strings would take five times the memory.
    """

    def __init__(
        self,
        root: str,
        folders: list[bytes],
        stamps: np.ndarray,
        names: np.ndarray,
        ends: np.ndarray,
        folder_of: np.ndarray,
    ) -> None:
        self.root = root
        self.folders = folders
        """All folders, relative to `root`; which is the first, empty."""
        self.stamps = stamps
        """int64 [folders, 2], ns: when each was changed, by its own word (which programs can set) and the system's."""
        self.names = names
        """uint8: the files' names."""
        self.ends = ends
        """int64 [n]: where each name ends."""
        self.folder_of = folder_of
        """int32 [n]: the folder that each file lies in."""

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        if index >= len(self):
            raise IndexError(index)
        return os.path.join(self.root, os.fsdecode(self.below(index)))

    def below(self, index: int) -> bytes:
        """The path of a file, relative to `root`."""
        low = self.ends[index - 1] if index else 0
        return os.path.join(self.folders[self.folder_of[index]], self.names[low : self.ends[index]].tobytes())

    @property
    def classes(self) -> tuple[str, ...]:
        """The folders right in `root`, in the order of their bytes, so that it is the same under every locale."""
        return tuple(os.fsdecode(path) for path in self.folders[1:] if b"/" not in path)

    def class_of(self) -> np.ndarray:
        """int64 [n]: the place in `classes` of the folder that each file lies in or below; -1: right in `root`."""
        return (np.cumsum([b"/" not in path for path in self.folders]) - 2)[self.folder_of]


def tree(root: str, *, keep: bool = True) -> Tree:
    """The images below `root`; where there are many from the user's cache folder, if nothing changed, and into it if
    `keep`. SourceError: a folder that cannot be listed."""
    home = cache_folder() if keep else None
    digest = hashlib.blake2b(os.fsencode(os.path.abspath(root)), digest_size=16).hexdigest()
    place = home / "listings" / f"{digest}.{_FORM}.npz" if home else None
    kept = _read(root, place) if place else None
    if kept is not None:
        return kept
    began, listing = time.time_ns(), _Listing()
    listing.add(os.fsencode(root), b"", {})
    found = listing.tree(root)
    if place and len(found) >= KEPT_FROM and _tell_changes(found.stamps) and found.stamps.max() < began - _STILL_NS:
        _write(found, place)
    return found


class _Listing:
    """A Tree in the making."""

    def __init__(self) -> None:
        self._folders: list[bytes] = []
        self._stamps, self._names, self._ends, self._folder_of = array("q"), bytearray(), array("q"), array("i")

    def add(self, path: bytes, below: bytes, above: dict[tuple[int, int], bytes]) -> None:
        """A folder and all in it. path: whole; below: relative to the root; above: the folders that it lies in, by
        device and inode."""
        beat()
        number = len(self._folders)
        self._folders.append(below)
        try:
            status = os.stat(path)  # before it is listed, so that a change meanwhile shows
            with os.scandir(path) as entries:
                found = sorted(entries, key=attrgetter("name"))
        except OSError as error:
            raise SourceError(f"{shown_path(os.fsdecode(path))}: cannot be listed ({error.strerror})") from None
        here = status.st_dev, status.st_ino
        if here in above:
            link, back = (shown_path(os.fsdecode(folder)) for folder in (path, above[here]))
            raise SourceError(f"{link}: leads back to {back}, which it lies in; remove the link")
        self._stamps.extend(_stamp(status))
        for entry in found:
            if entry.name.startswith(b"."):
                continue
            if is_folder(entry):
                self.add(entry.path, os.path.join(below, entry.name), {**above, here: path})
            elif entry.name.lower().endswith(_ENDINGS):
                self._names += entry.name
                self._ends.append(len(self._names))
                self._folder_of.append(number)

    def tree(self, root: str) -> Tree:
        stamps, ends = np.array(self._stamps, np.int64).reshape(-1, 2), np.array(self._ends, np.int64)
        names = np.frombuffer(self._names, np.uint8)
        return Tree(root, self._folders, stamps, names, ends, np.array(self._folder_of, np.int32))


def _tell_changes(stamps: np.ndarray) -> bool:
    """Whether the folders' times say anything: some file systems over a network have one for all, or none."""
    return bool(stamps.max() > 0 and (len(stamps) == 1 or (stamps != stamps[0]).any()))


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_ctime_ns


def _write(found: Tree, place: Path) -> None:
    held, paths = io.BytesIO(), np.frombuffer(b"\0".join(found.folders), np.uint8)
    np.savez(held, paths, found.stamps, found.names, found.ends, found.folder_of)  # a zip, with a CRC-32 of each
    try:
        write_whole(place, held.getbuffer())
    except OSError:
        pass  # a home that is read-only or full: the next one lists anew, too


def _read(root: str, place: Path) -> Tree | None:
    """What was kept, if it is whole and no folder has changed."""
    try:
        with np.load(place, allow_pickle=False) as held:
            paths, *arrays = (held[f"arr_{number}"] for number in range(5))
        found = Tree(root, paths.tobytes().split(b"\0"), *arrays)
        top = os.fsencode(root)
        now = [_stamp(os.stat(os.path.join(top, path))) for path in found.folders]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return found if np.array_equal(found.stamps, now) else None
