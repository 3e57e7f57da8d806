"""Files that are either whole or absent: written aside, flushed to the disk, renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Makes renames in `folder` survive a power cut (a no-op where folders cannot be opened)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def write_whole(path: Path, data: bytes | memoryview | str) -> None:
    """Writes `path` so that a reader, or a crash at any moment, sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.aside")
    try:
        with open(aside, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def folder_whole(path: Path) -> Iterator[Path]:
    """A folder to fill; it takes its name only when the block ends well, and replaces an older one of that name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.aside")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        sync_folder(aside)
        if path.exists():
            old = path.with_name(f".{path.name}.{os.getpid()}.old")
            shutil.rmtree(old, ignore_errors=True)
            os.rename(path, old)
            try:
                os.rename(aside, path)
            except BaseException:
                os.rename(old, path)
                raise
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(aside, path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    sync_folder(path.parent)


@contextmanager
def files_whole(*paths: Path) -> Iterator[Path]:
    """A folder to fill with files of the names of `paths`; they take their places, one after another, only when the
    block ends well."""
    last = paths[-1]
    last.parent.mkdir(parents=True, exist_ok=True)
    aside = last.with_name(f".{last.name}.{os.getpid()}.aside")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        place(aside, *paths)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def place(aside: Path, *paths: Path) -> None:
    """Files of a folder take their places, of the same names, one after another, when all are on the disk."""
    for path in paths:
        sync_file(aside / path.name)
    for path in paths:
        os.replace(aside / path.name, path)
    sync_folder(paths[-1].parent)


def sync_file(path: Path) -> None:
    """Makes what was written into a file survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cache_folder() -> Path | None:
    """Where this user's programs keep what can be made anew ($XDG_CACHE_HOME, else ~/.cache); None: nobody knows."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "shoal"
    except RuntimeError:
        return None
