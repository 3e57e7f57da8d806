"""Every image looked at: what is damaged, double or odd is found, whatever it lies in."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.data.checking import check
from shoal.data.packed import write
from shoal.data.packing import plan
from shoal.data.recordio import Records, sums_of
from small_images import cifar_files, class_folders, encoded, jpeg, picture, rec_pair, write_files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    class_folders(tmp_path / "in/train", {"ant": 5, "bee": 4})
    class_folders(tmp_path / "in/val", {"ant": 2, "bee": 2})
    for number, file in enumerate(sorted((tmp_path / "in/val").rglob("*.jpg"))):
        file.write_bytes(jpeg(500 + number, 33, 44))
    return tmp_path / "in"


@pytest.fixture
def packed(root: Path) -> Path:
    rec = root.parent / "some_train.rec"
    write([plan(root / "train", rec, None, None, None)])
    return rec


def test_a_sound_folder(root):
    heard: list[int] = []
    checked = check(root, begun=heard.append, done=heard.append)
    assert checked.well and not checked.notes and heard[0] == 13 and heard[-1] == 13
    train, val = checked.splits
    assert (train.name, train.images, val.images) == ("train", 9, 4)
    assert train.nbytes == sum(file.stat().st_size for file in (root / "train").rglob("*.jpg"))
    assert train.forms == {"JPEG, colour": 9}
    assert train.sizes == "50 x 40 (sides from 36 x 40 to 50 x 60)" and val.sizes == "44 x 33"


def test_what_cannot_be_decoded_is_named(root):
    (root / "train/ant/000.jpg").write_bytes(jpeg(0)[:-100])
    (root / "val/bee/001.jpg").write_bytes(b"")
    told: list[str] = []
    checked = check(root, told=told.append)
    assert not checked.well and told == [*checked.splits[0].bad, *checked.splits[1].bad]
    assert [split.bad for split in checked.splits] == [
        [f"{root}/train/ant/000.jpg is a JPEG that cannot be decoded (Image is incomplete or truncated)"],
        [f"{root}/val/bee/001.jpg is empty (0 bytes)"],
    ]


def test_images_that_are_there_twice(root):
    shutil.copy(root / "train/ant/001.jpg", root / "val/ant/copy.jpg")
    shutil.copy(root / "train/bee/002.jpg", root / "train/ant/zcopy.jpg")
    shutil.copy(root / "train/bee/003.jpg", root / "train/bee/zcopy.jpg")
    checked = check(root)
    across, labels = checked.wrong
    assert across == (
        "images in both splits, so that validation sees what was trained on: 1; the first: "
        f"{root}/train/ant/001.jpg (label 0) and {root}/val/ant/copy.jpg (label 0)"
    )
    assert labels == (
        f"images with two labels: 1; the first: {root}/train/ant/zcopy.jpg (label 0) and "
        f"{root}/train/bee/002.jpg (label 1)"
    )
    assert checked.notes == ["images that are more than once in a split, under the same label: 1"]


def test_forms_are_counted(root):
    (root / "train/ant/grey.jpg").write_bytes(encoded(picture(1)[..., 0], "JPEG"))
    (root / "train/ant/plain.png").write_bytes(encoded(picture(2), "PNG"))
    assert check(root).splits[0].forms == {"JPEG, colour": 9, "JPEG, grey": 1, "PNG, colour": 1}


def test_other_sources(tmp_path):
    assert [split.images for split in check(rec_pair(tmp_path / "rec")).splits] == [60, 30]
    cifar = check(write_files(tmp_path / "cifar-10-batches-py", cifar_files()).parent)
    assert [(split.images, split.sizes) for split in cifar.splits] == [(60, "32 x 32"), (12, "32 x 32")]
    with pytest.raises(ShoalError, match="no such file or folder"):
        check(tmp_path / "none")


def test_a_packed_file_has_sums_and_one_damaged_anywhere_is_found(packed):
    assert sums_of(packed).is_file() and check(packed).well
    whole, draw, scratch = packed.read_bytes(), random.Random(0), packed.with_name("scratch.rec")
    shutil.copy(sums_of(packed), sums_of(scratch))
    ends = [*Records(packed).starts[1:], len(whole)]
    for _ in range(1000):
        at, bit = draw.randrange(len(whole)), 1 << draw.randrange(8)
        scratch.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        number = int(np.searchsorted(ends, at, side="right"))
        try:
            (told,) = Records(scratch).damage()
            assert told.startswith(f"{scratch}: record {number} at byte "), (at, bit, told)
        except ShoalError as error:  # a length or a mark: then the file itself cannot be followed
            assert str(error).startswith(f"{scratch}: record "), (at, bit, error)


def test_damage_is_part_of_the_check(packed):
    data = bytearray(packed.read_bytes())
    data[-30] ^= 1
    packed.write_bytes(data)
    checked = check(packed)
    assert any("record 8 at byte" in line and "not those that were packed (CRC-32)" in line for line in checked.wrong)
    np.save(sums_of(packed), np.zeros(3, "<u4"))
    assert "does not belong to 9 records" in check(packed).wrong[0]
    sums_of(packed).write_bytes(b"no array")
    assert "cannot be read" in check(packed).wrong[0]
