"""Images on their way into a file that all share: who waits, what cannot be read, and file systems that can do less."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from shoal.base.beats import heard
from shoal.data import cache as caches
from shoal.data.augment import Augment
from shoal.data.cache import in_file, in_memory
from shoal.data.decode import Pictures
from shoal.data.decoders.torchvision import Torchvision
from shoal.data.fingerprint import fingerprint
from shoal.data.image import ImageError
from shoal.data.source import NO_IMAGE, SourceError, Streamed
from shoal.data.sources.folder import Folder
from shoal.data.store import Filling, Stored
from small_images import class_folders, jpeg

SAME = [jpeg(number, 20, 28) for number in range(130)]
VARIED = [jpeg(number, 30 + number % 5, 40 - number % 7) for number in range(70)]
BOTH = pytest.mark.parametrize("images", [SAME, VARIED], ids=["pixels", "encoded"])


def streamed(images: list[bytes], read: Callable[[int], bytes] | None = None, **options: Any) -> Streamed:
    tone = (100.0, 110.0, 120.0)
    labels = np.arange(len(images)) % 2
    read = read or images.__getitem__
    return Streamed(read, "image {}".format, labels, ("a", "b"), mean=tone, std=tone, **options)


def seen(split: Any) -> tuple[np.ndarray, np.ndarray]:
    return Pictures(split, Augment(size=16), 2).val(np.arange(len(split.labels)))


def beats_of(work: Callable[[], object]) -> int:
    heard_of: list[int] = []
    with heard(lambda: heard_of.append(1)):
        work()
    return len(heard_of)


def files_in(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir())


@BOTH
def test_they_are_the_same_images_wherever_they_are_kept(images, tmp_path):
    """So that what a teacher said of them holds with another data.cache."""
    ways = (streamed(images), in_memory(streamed(images), 1 << 30, 1), in_file(streamed(images), tmp_path))
    assert len({fingerprint(way) for way in ways}) == 1
    assert fingerprint(in_file(streamed([*images[:-1], images[0]]), tmp_path)) != fingerprint(ways[0])


# Whoever watches over a worker hears that it gets on


@BOTH
def test_a_beat_for_every_64_images(images, tmp_path):
    made, read = (beats_of(lambda: in_file(streamed(images), tmp_path)) for _ in range(2))
    assert read == len(images)  # the sample of the fingerprint
    assert made - read >= (100 + 3 if images is SAME else 100 + 2 + 2)  # those looked at, then all
    assert beats_of(lambda: in_memory(streamed(SAME), 1 << 30, 1)) == 3


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_one_who_waits_has_a_beat_where_the_other_had_one(tmp_path, monkeypatch):
    monkeypatch.setattr(caches, "_LOOK_S", 0.002)
    in_file(streamed(SAME), tmp_path)
    (index,), (path,) = tmp_path.glob("*.npz"), tmp_path.glob("*.lock")
    index.unlink()
    os.utime(path, ns=(1, 1))
    beats: list[int] = []

    def wait() -> object:
        with heard(lambda: beats.append(1)):
            return in_file(streamed(SAME), tmp_path)

    with ThreadPoolExecutor(1) as pool, open(path, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = pool.submit(wait)
        before = len(SAME) + 1
        wait_until(lambda: len(beats) >= before)
        time.sleep(0.05)
        assert len(beats) == before  # a holder that hangs is not hidden
        os.utime(path, ns=(2, 2))
        wait_until(lambda: len(beats) == before + 1)
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert isinstance(waiting.result(), Stored)
    assert path.stat().st_mtime_ns > 2  # it told those who wait in its turn


# Images that cannot be read


def locked(images: list[bytes], index: int) -> Callable[[int], bytes]:
    def read(asked: int) -> bytes:
        if asked == index:
            raise ImageError("cannot be read (Permission denied)")
        return images[asked]

    return read


@BOTH
@pytest.mark.parametrize("stat", [True, False], ids=["seen", "unseen"])
def test_an_image_that_cannot_be_read_is_named_or_skipped(images, stat, tmp_path):
    sizes = [len(image) for image in images]
    read = locked(images, 9)
    nbytes = sizes.__getitem__ if stat else lambda index: len(read(index))
    with pytest.raises(SourceError, match=r"^image 9 cannot be read \(Permission denied\); mend or remove it"):
        in_file(streamed(images, read, nbytes=nbytes), tmp_path)
    assert files_in(tmp_path) == [".lock"]
    skipping = {"nbytes": nbytes, "on_bad": "skip"}
    for _ in range(2):
        pictures, labels = seen(in_file(streamed(images, read, **skipping), tmp_path))
        expected = seen(streamed(images, read, **skipping))
        assert np.array_equal(pictures, expected[0]) and np.array_equal(labels, expected[1])
        assert np.flatnonzero(labels == NO_IMAGE).tolist() == [9]


def test_a_copy_that_fails_ends_before_its_file_is_closed(tmp_path, monkeypatch):
    closed: list[int] = []
    put = Filling.put

    def late(self: Filling, index: int, row: bytes) -> None:
        time.sleep(0.05 if index >= 64 else 0)
        try:
            os.fstat(self._file)
        except OSError:
            closed.append(index)
        put(self, index, row)

    monkeypatch.setattr(Filling, "put", late)
    monkeypatch.setattr(caches, "cores", lambda: 2)
    with pytest.raises(SourceError, match="image 0 had"):
        in_file(streamed(VARIED, nbytes=lambda index: len(VARIED[index]) + (index == 0)), tmp_path)
    assert not closed and not [thread for thread in threading.enumerate() if thread.name.startswith("copy")]


# What a file belongs to


class Rough(Torchvision, frozen=True, kw_only=True):
    EXACT: ClassVar[bool] = False


def test_pixels_of_another_decoder_are_kept_beside(tmp_path):
    class_folders(tmp_path / "train", {"a": 2, "b": 2}, sizes=((8, 8),))
    for decoder in (Rough(), Torchvision(), Rough()):
        Folder(path=str(tmp_path), cache="file", cache_path=str(tmp_path / "kept"), decoder=decoder).open("train")
    assert len(list((tmp_path / "kept").glob("*.images"))) == 2


def test_another_file_among_the_unlabelled_makes_another_version(tmp_path):
    class_folders(tmp_path / "train", {"a": 2, "b": 2})
    class_folders(tmp_path / "more", {"x": 2})
    source = Folder(path=str(tmp_path), unlabelled=str(tmp_path / "more"), cache="none")
    before = source.open("train").version
    assert source.open("train").version == before
    time.sleep(0.01)  # a tick of the file system's clock
    os.rename(tmp_path / "more/x/000.jpg", tmp_path / "more/x/other.jpg")
    assert source.open("train").version != before


@pytest.mark.parametrize("images", [VARIED, [*SAME, VARIED[0]]], ids=["several", "late"])
def test_images_that_nobody_can_train_on_are_not_copied(images, tmp_path):
    data = streamed(images)
    assert in_file(data, tmp_path, resized=False) is data
    assert data.told == "not kept: they have several sizes" and files_in(tmp_path) == [".lock"]


def test_a_source_says_whether_its_images_become_one_size(tmp_path):
    class_folders(tmp_path / "train", {"a": 2, "b": 2}, sizes=((8, 8), (9, 9)))
    for augment, files in ((Augment(), 0), (Augment(size=8), 1)):
        Folder(path=str(tmp_path), cache="file", cache_path=str(tmp_path / "kept"), augment=augment).open("train")
        assert len(list((tmp_path / "kept").glob("*.images"))) == files


def test_a_whole_file_needs_no_lock(tmp_path):
    made = in_file(streamed(SAME), tmp_path)
    (lock,) = tmp_path.glob("*.lock")
    lock.unlink()
    assert np.array_equal(seen(in_file(streamed(SAME), tmp_path))[0], seen(made)[0]) and not lock.exists()


# Space


def test_what_cannot_be_used_makes_room_first(tmp_path, monkeypatch):
    in_file(streamed(SAME), tmp_path)
    next(tmp_path.glob("*.npz")).unlink()
    usage = caches.shutil.disk_usage

    def looked(folder: Path) -> Any:
        assert files_in(tmp_path) == [".lock"]
        return usage(folder)

    monkeypatch.setattr(caches.shutil, "disk_usage", looked)
    in_file(streamed(SAME), tmp_path)


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@BOTH
def test_a_disk_that_cannot_set_space_apart(images, tmp_path, monkeypatch):
    for number in (errno.EINVAL, errno.EOPNOTSUPP):
        monkeypatch.setattr(os, "posix_fallocate", failing(number))
        found = in_file(streamed(images), tmp_path / str(number))
        assert np.array_equal(seen(found)[0], seen(streamed(images))[0])
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    with pytest.raises(SourceError, match="images cannot be kept here: No space left on device"):
        in_file(streamed(images), tmp_path / "full")
    assert files_in(tmp_path / "full") == [".lock"]


def test_no_bytes_at_all(tmp_path):
    found = in_file(streamed([b""] * 3, on_bad="skip"), tmp_path)
    assert seen(found)[1].tolist() == [NO_IMAGE] * 3
