"""What is kept of a split: the same images from memory, from a file and decoded anew; and all that may go wrong."""

from __future__ import annotations

import os
import resource
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.data import cache as caches
from shoal.data.augment import Augment
from shoal.data.cache import in_file, in_memory
from shoal.data.decode import Pictures
from shoal.data.source import NO_IMAGE, Held, SourceError, Streamed
from shoal.data.sources.folder import Folder
from shoal.data.sources.recordio import Recordio
from shoal.data.store import Store, Stored
from small_images import class_folders, jpeg, rec_pair

GIB = 1 << 30
SAME = [jpeg(number, 20, 28) for number in range(130)]
VARIED = [jpeg(number, 30 + number % 5, 40 - number % 7) for number in range(70)]


def streamed(images: list[bytes], **options) -> Streamed:
    labels, names = np.arange(len(images)) % 3, ("a", "b", "c")
    tone = (100.2, 110.0, 120.0)
    return Streamed(images.__getitem__, "image {}".format, labels, names, mean=tone, std=tone, **options)


def seen(split, augment: Augment) -> tuple[np.ndarray, np.ndarray]:
    return Pictures(split, augment, 2).train(np.arange(len(split.labels))[::-1], seed=3, epoch=1)


def same(one, other, augment: Augment) -> bool:
    return all(np.array_equal(*pair) for pair in zip(seen(one, augment), seen(other, augment), strict=True))


FORMS = {
    "one size": (SAME, {}),
    "several": (VARIED, {}),
    "told": (VARIED, {"side": 24}),
    "late": ([*SAME, VARIED[0]], {}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("skip", [False, True])
def test_images_from_anywhere_are_the_same(form, skip, tmp_path):
    images, options = FORMS[form]
    if skip:
        images, options = [*images[:9], b"", images[9][:200], *images[9:]], options | {"on_bad": "skip"}
    augment = Augment(size=16, mirror=True)
    anew = streamed(images, **options)
    held = in_memory(streamed(images, **options), GIB, 1)
    made = in_file(streamed(images, **options), tmp_path)
    again = in_file(streamed(images, **options), tmp_path)
    assert (
        isinstance(held, Held)
        == isinstance(made, Stored)
        == isinstance(again, Stored)
        == (form in ("one size", "told"))
    )
    assert all(same(anew, split, augment) for split in (held, made, again))
    assert (seen(again, augment)[1] == NO_IMAGE).sum() == 2 * skip
    assert len(list(tmp_path.glob("*.images"))) == 1 and not list(tmp_path.glob(".*"))


def test_what_was_kept_is_read_and_nothing_else(tmp_path, monkeypatch):
    made = in_file(streamed(SAME), tmp_path)
    monkeypatch.setattr(Streamed, "decoded", lambda *_: pytest.fail("decoded anew"))
    again = in_file(streamed(SAME), tmp_path)
    assert np.array_equal(again.pixels(np.arange(130)), made.pixels(np.arange(130)))
    assert again.told.startswith(f"read from {tmp_path}") and "0.2 MiB for all workers here" in again.told


def test_other_images_labels_sizes_or_files_are_kept_beside(tmp_path):
    others = streamed([*SAME[:-1], SAME[0]]), streamed(SAME, side=20), streamed(SAME, version=2), streamed(SAME[1:])
    for data in (streamed(SAME), *others, streamed(SAME)):
        in_file(data, tmp_path)
    assert len(list(tmp_path.glob("*.images"))) == 5


def test_changed_files_are_kept_anew(tmp_path):
    root = class_folders_in(tmp_path / "some")
    sources = Folder(path=str(root), cache="file", cache_path=str(tmp_path / "kept"), image_size=16)
    before = sources.open("train").labels
    shutil.copy(root / "train/a/000.jpg", root / "train/a/new.jpg")
    assert len(sources.open("train").labels) == len(before) + 1
    records = rec_pair(tmp_path / "rec")
    source = Recordio(path=str(records), cache="file", cache_path=str(tmp_path / "kept"))
    for change in (lambda: None, lambda: os.utime(records / "some_train.rec", ns=(1, 1))):
        change()
        assert isinstance(source.open("train"), Stored)
    assert len(list((tmp_path / "kept").glob("*.images"))) == 4


def class_folders_in(root: Path) -> Path:
    class_folders(root / "train", {"a": 6, "b": 6})
    return root


def test_workers_that_come_at_once_make_it_once(tmp_path, capsys):
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: in_file(streamed(SAME), tmp_path), range(6)))
    assert all(same(split, found[0], Augment()) for split in found)
    assert capsys.readouterr().err.count("data.cache: keeps 130 images as pixels") == 1


# What goes wrong


def test_too_little_disk_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(caches.shutil, "disk_usage", lambda path: SimpleNamespace(free=200_000))
    with pytest.raises(SourceError) as caught:
        in_file(streamed(SAME), tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: 130 images as pixels take 0.2 MiB, 0.2 MiB are free; data.cache_path names another disk, "
        "data.cache=none keeps none"
    )
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("images", [SAME, VARIED], ids=["pixels", "encoded"])
def test_a_disk_that_fills_up_on_the_way_leaves_nothing(images, tmp_path, monkeypatch):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    try:
        with pytest.raises(SourceError, match=r"images cannot be kept here: File too large \(data.cache_path\)"):
            in_file(streamed(images), tmp_path)
        monkeypatch.delattr(os, "posix_fallocate")  # and where no space can be set apart
        with pytest.raises(SourceError, match=r"images cannot be kept here: File too large"):
            in_file(streamed(images), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    in_file(streamed(images), tmp_path)


def test_a_bad_image_stops_it_and_leaves_nothing(tmp_path):
    with pytest.raises(SourceError, match=r"image 9 is empty \(0 bytes\); mend or remove it"):
        in_file(streamed([*SAME[:9], b"", *SAME]), tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    in_file(streamed([*SAME[:9], b"", *SAME], on_bad="skip"), tmp_path)
    with pytest.raises(SourceError, match=r"image 9 is empty"):  # also for one who does not skip
        in_file(streamed([*SAME[:9], b"", *SAME]), tmp_path)


def test_what_a_killed_process_left_is_removed(tmp_path):
    made = in_file(streamed(SAME), tmp_path)
    (file,) = tmp_path.glob("*.images")
    file.with_suffix(".npz").unlink()
    left = file.with_name(f".{file.stem}.1.aside")
    left.touch()
    assert same(in_file(streamed(SAME), tmp_path), made, Augment()) and not left.exists()


@pytest.mark.parametrize("images", [SAME, VARIED], ids=["pixels", "encoded"])
def test_damage_is_found_when_it_is_read(images, tmp_path):
    in_file(streamed(images), tmp_path)
    (file,) = tmp_path.glob("*.images")
    data = bytearray(file.read_bytes())
    store = Store.at(file.with_suffix(""))
    assert store is not None
    at = sum(store.size(index) for index in range(5))
    data[at] ^= 1
    file.write_bytes(data)
    split = in_file(streamed(images), tmp_path)
    read = split.pixels if isinstance(split, Stored) else lambda indices: [split.read(int(i)) for i in indices]
    read(np.array([4, 6]))
    with pytest.raises(SourceError) as caught:
        read(np.array([4, 5]))
    assert str(caught.value) == (
        f"{file}: image 5 at byte {at} is not as it was written (CRC-32); remove the file, and it is made anew"
    )
    os.truncate(file, at)
    with pytest.raises(SourceError, match="image 6 at byte"):  # and no crash
        read(np.array([6]))
    again = in_file(streamed(images), tmp_path)
    assert same(again, streamed(images), Augment(size=16))


def test_a_damaged_index_has_it_made_anew(tmp_path):
    in_file(streamed(SAME), tmp_path)
    (index,) = tmp_path.glob("*.npz")
    whole = index.read_bytes()
    for at in range(0, len(whole), 97):
        index.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        store = Store.at(index.with_suffix(""))
        assert store is None or np.array_equal(store.pixels(streamed(SAME)).pixels(np.arange(3))[:, 0, 0, 0], FIRST), at
    index.write_bytes(whole[:-30])
    assert same(in_file(streamed(SAME), tmp_path), streamed(SAME), Augment(size=16))


FIRST = [streamed(SAME).decoded(index)[0, 0, 0].item() for index in range(3)]


def test_a_folder_that_is_none(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match=r"images cannot be kept here: (File exists|Not a directory)"):
        in_file(streamed(SAME), tmp_path / "file")


# Memory


@pytest.mark.parametrize(
    ("memory", "workers", "resized", "held"),
    [
        ((GIB, GIB), 1, True, True),
        (None, 1, True, True),
        (None, 4, True, True),
        ((GIB, 200_000), 1, True, False),
        ((GIB, 800_000), 4, True, False),
        ((GIB, 900_000), 4, True, True),
        ((GIB, 800_000), 4, False, True),
        ((GIB, 200_000), 4, False, False),
    ],
    ids=["enough", "nobody knows", "nor of four", "too little free", "too little for all", "for all", "alone", "none"],
)
def test_images_are_held_where_they_fit_beside_those_of_the_other_workers(memory, workers, resized, held, monkeypatch):
    """Or where they fit at all, if they are known to have one size only when they are held."""
    monkeypatch.setattr(caches, "memory", lambda: memory)
    split = in_memory(streamed(SAME), GIB, workers, resized=resized)
    assert isinstance(split, Held) == held
    assert split.told.startswith("decoded once and held: 0.2 MiB" if held else "decoded anew each time: 0.2 MiB")


def test_why_images_are_not_held():
    assert in_memory(streamed(VARIED), GIB, 1).told == "decoded anew each time: they have several sizes"
    assert in_memory(streamed(SAME), 1000, 2).told == (
        "decoded anew each time: 0.2 MiB are more than data.memory_gib holds"
    )
