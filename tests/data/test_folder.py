"""Folders of class folders, and RecordIO files with their lists: your own images, and what may be wrong with them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from shoal.data.source import NO_IMAGE, NO_LABEL, Held, SourceError, Streamed
from shoal.data.sources.folder import Folder
from shoal.data.sources.recordio import Recordio
from small_images import class_folders, encoded, jpeg, picture, rec_pair, write_rec


@pytest.fixture
def root(tmp_path) -> Path:
    class_folders(tmp_path / "train", {"cat": 3, "ant": 4, "bee": 2})
    class_folders(tmp_path / "val", {"ant": 1, "bee": 2, "cat": 1})
    return tmp_path


def fault(source: Folder | Recordio, split: str = "train") -> str:
    with pytest.raises(SourceError) as caught:
        source.open(split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Folders


def test_train_and_val_below_one_folder_or_apart(root):
    together, apart = Folder(path=str(root)), Folder(path=str(root / "train"), val=str(root / "val"))
    for source in (together, apart):
        train, val = source.open("train"), source.open("val")
        assert isinstance(train, Streamed) and train.shape == (3, 0, 0)
        assert train.classes == val.classes == ("ant", "bee", "cat")
        assert train.labels.tolist() == [0] * 4 + [1] * 2 + [2] * 3 and val.labels.tolist() == [0, 1, 1, 2]
        assert train.where(4) == str(root / "train/bee/000.jpg")
        assert train.read(4) == (root / "train/bee/000.jpg").read_bytes()


def test_limit_takes_from_all_classes_by_turns(root):
    split = Folder(path=str(root), limit=5).open("train")
    assert split.labels.tolist() == [0, 1, 2, 0, 1]
    assert [split.where(index)[-11:] for index in (0, 3)] == ["ant/000.jpg", "ant/001.jpg"]


def test_images_lie_deeper_hidden_and_other_files_do_not_count(root):
    (root / "train/ant/more").mkdir()
    (root / "train/ant/more/x.PNG").write_bytes(encoded(picture(1)))
    (root / "train/ant/notes.txt").touch()
    (root / "train/ant/.x.jpg").touch()
    (root / "train/.ipynb_checkpoints").mkdir()
    split = Folder(path=str(root)).open("train")
    assert len(split.labels) == 10 and split.where(4) == str(root / "train/ant/more/x.PNG")


def test_a_validation_folder_may_lack_a_class(root):
    shutil.rmtree(root / "val/bee")
    val = Folder(path=str(root)).open("val")
    assert val.classes == ("ant", "bee", "cat") and val.labels.tolist() == [0, 2]


def test_a_share_of_the_training_images_where_there_is_no_validation_folder(tmp_path):
    class_folders(tmp_path, {"ant": 10, "bee": 3, "cow": 1})
    source = Folder(path=str(tmp_path), val_share=0.2)
    train, val = source.open("train"), source.open("val")
    assert train.labels.tolist() == [0] * 8 + [1] * 2 + [2] and val.labels.tolist() == [0, 0, 1]
    names = [[split.where(index) for index in range(len(split.labels))] for split in (train, val)]
    assert sorted(names[0] + names[1]) == sorted(str(path) for path in tmp_path.rglob("*.jpg"))
    elsewhere = tmp_path.with_name("elsewhere")
    shutil.copytree(tmp_path, elsewhere / "train")
    moved = Folder(path=str(elsewhere), val_share=0.2).open("val")
    assert [moved.where(place)[-11:] for place in range(3)] == [name[-11:] for name in names[1]]


def test_images_without_labels_come_after_the_others(root, tmp_path_factory):
    more = tmp_path_factory.mktemp("more")
    class_folders(more, {"x": 2, "y": 1})
    source = Folder(path=str(root), unlabelled=str(more))
    split = source.open("train")
    assert split.labels.tolist() == [0] * 4 + [1] * 2 + [2] * 3 + [NO_LABEL] * 3
    assert split.where(11) == str(more / "y/000.jpg") and split.classes == ("ant", "bee", "cat")
    assert source.open("val").labels.tolist() == Folder(path=str(root)).open("val").labels.tolist()
    few = Folder(path=str(root), unlabelled=str(more), limit=6).open("train")
    assert few.labels.tolist() == [0, 1, 2, NO_LABEL, 0, 1]
    assert "no such folder (data.unlabelled)" in fault(Folder(path=str(root), unlabelled=str(root / "no")))
    empty = str(tmp_path_factory.mktemp("empty"))
    assert f"{empty}: holds no images (data.unlabelled;" in fault(Folder(path=str(root), unlabelled=empty))


def test_a_validation_folder_comes_before_a_share(root):
    assert len(Folder(path=str(root), val_share=0.5).open("val").labels) == 4
    assert len(Folder(path=str(root), val_share=0.5).open("train").labels) == 9
    apart = Folder(path=str(root / "train"), val=str(root / "val"), val_share=0.5)
    assert len(apart.open("val").labels) == 4


def test_small_images_of_one_size_are_held(tmp_path):
    class_folders(tmp_path / "train", {"a": 3, "b": 3}, sizes=((20, 20),))
    assert isinstance(Folder(path=str(tmp_path)).open("train"), Held)
    assert Folder(path=str(tmp_path), image_size=16).open("train").shape == (3, 16, 16)


def test_names_that_are_not_utf8(root):
    strange = os.fsencode(root / "train") + b"/caf\xe9"
    os.rename(root / "train/cat", strange)
    os.rename(root / "val/cat", os.fsencode(root / "val") + b"/caf\xe9")
    os.rename(strange + b"/000.jpg", strange + b"/\xff.jpg")
    train = Folder(path=str(root)).open("train")
    assert train.classes == ("ant", "bee", "caf\\xe9") and (train.labels == 2).sum() == 3
    assert train.read(8) and train.image(8) is not None
    assert train.where(8).endswith("train/caf\\xe9/\\xff.jpg")
    train.where(8).encode()
    os.truncate(strange + b"/\xff.jpg", 0)
    with pytest.raises(SourceError, match=r"xff\.jpg is empty \(0 bytes\)"):
        train.image(8)


def test_folders_that_are_not_there_or_hold_nothing(root, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    assert fault(Folder(path=str(empty / "no"))).startswith(f"{empty / 'no'}: no such folder (data.path)")
    assert "holds no class folders; expected one sub-folder of images per class" in fault(Folder(path=str(empty)))
    (empty / "a.txt").touch()
    assert f"{empty / 'a.txt'}: is a file; data.path names a folder" in fault(Folder(path=str(empty / "a.txt")))
    shutil.rmtree(root / "val")
    assert fault(Folder(path=str(root)), "val") == (
        f"{root / 'val'}: no such folder, and data.val names none; validation images are needed, one sub-folder "
        "per class; data.val_share=0.2 keeps a fifth of the training images for it"
    )
    assert fault(Folder(path=str(root), val=str(empty / "v")), "val").startswith(f"{empty / 'v'}: no such folder; ")


def test_a_class_folder_without_images(root):
    (root / "train/dog").mkdir()
    (root / "train/dog/readme.txt").touch()
    told = fault(Folder(path=str(root)))
    assert (
        told.startswith(f"{root / 'train/dog'}: a class folder without images (.jpg, ") and "data.on_bad=skip" in told
    )
    assert Folder(path=str(root), on_bad="skip").open("train").classes == ("ant", "bee", "cat", "dog")


def test_a_flat_validation_folder_is_diagnosed_with_the_way_to_mend_it(root):
    shutil.rmtree(root / "val")
    (root / "val").mkdir()
    for number in range(3):
        (root / f"val/ILSVRC2012_val_{number:08}.JPEG").write_bytes(jpeg(number))
    told = fault(Folder(path=str(root)), "val")
    assert told.startswith(f"{root / 'val'}: 3 images lie flat in it, without class folders, as ImageNet's validation")
    command = f"shoal data pack {root / 'val'} {root / 'val-by-class'} --labels FILE --classes {root / 'train'}"
    assert f"with a list of their labels, {command} makes a folder with class folders beside it" in told


def test_validation_classes_that_nothing_is_trained_on(root):
    (root / "val/cow").mkdir()
    assert fault(Folder(path=str(root)), "val") == f"{root / 'val/cow'}: no class of this name in {root / 'train'}"
    (root / "val/dog").mkdir()
    assert fault(Folder(path=str(root)), "val").endswith("(nor of 1 others)")


def test_what_may_not_be_read(root):
    split = Folder(path=str(root)).open("train")
    denied = PermissionError(
        13, "Permission denied"
    )  # raised by hand: root, who runs tests in containers, may read all
    with (
        patch("builtins.open", side_effect=denied),
        pytest.raises(SourceError, match=r"000\.jpg cannot be read \(Permiss"),
    ):
        split.image(0)
    with patch("os.scandir", side_effect=denied):
        assert fault(Folder(path=str(root))) == f"{root / 'train'}: cannot be listed (Permission denied)"


def test_a_file_that_vanished(root):
    split = Folder(path=str(root)).open("train")
    (root / "train/ant/001.jpg").unlink()
    with pytest.raises(SourceError, match=r"001\.jpg is no longer there; it was when the folder was listed; mend"):
        split.image(1)


# RecordIO


def test_a_folder_of_two_or_two_files(tmp_path):
    rec_pair(tmp_path, sizes=(32, 40))
    train, val = (str(tmp_path / f"some_{split}.rec") for split in ("train", "val"))
    for source in (Recordio(path=str(tmp_path)), Recordio(path=train, val=val)):
        assert isinstance(source.open("train"), Streamed)
        assert source.open("train").classes == source.open("val").classes == tuple("0123456789")
        assert (len(source.open("train").labels), len(source.open("val").labels)) == (60, 30)
    assert source.open("val").read(3) == jpeg(1003, 40)
    assert fault(Recordio(path=train), "val") == (
        f"{train}: is one .rec, to train on; data.val names the one to validate on"
    )
    assert fault(Recordio(path=str(tmp_path / "no.rec"))).startswith(f"{tmp_path / 'no.rec'}: no such file")
    (tmp_path / "some_val.rec").unlink()
    assert "no file is named *val*.rec or *test*.rec" in fault(Recordio(path=str(tmp_path)), "val")


def test_which_of_several_labels(tmp_path):
    for split in ("train", "val"):
        write_rec(tmp_path / f"{split}.rec", [jpeg(n) for n in range(4)], [(n % 2, 5 - n) for n in range(4)])
    assert Recordio(path=str(tmp_path)).open("train").labels.tolist() == [0, 1, 0, 1]
    second = Recordio(path=str(tmp_path), label=1)
    assert second.open("val").labels.tolist() == [5, 4, 3, 2] and len(second.open("val").classes) == 6
    assert "has 2 labels; data.label: 2 asks for number 3" in fault(Recordio(path=str(tmp_path), label=2))


@pytest.mark.parametrize("label", [0.5, -2, float("nan"), float("inf"), 2.0**25])
def test_labels_that_are_no_class_numbers(tmp_path, label):
    write_rec(tmp_path / "train.rec", [jpeg(0), jpeg(1)], [1, label])
    told = fault(Recordio(path=str(tmp_path)))
    assert told.startswith(f"{tmp_path / 'train.rec'}: record 1 at byte ") and "is no class number (0, 1, …" in told


def test_minus_one_is_no_label(tmp_path):
    for split in ("train", "val"):
        write_rec(tmp_path / f"{split}.rec", [jpeg(0), jpeg(1)], [-1, 2])
    assert Recordio(path=str(tmp_path)).open("train").labels.tolist() == [-1, 2]


def test_a_list_names_the_classes(tmp_path):
    rec_pair(tmp_path, 3, 2)
    lst, source = tmp_path / "some_train.lst", Recordio(path=str(tmp_path))
    lst.write_text("0\t0.000000\tant/a.jpg\n1\t7.000000\tbee/b.jpg\n2\t4.000000\tcat/deep/c.jpg\n")
    assert source.open("val").classes == ("ant", "1", "2", "3", "deep", "5", "6", "bee")
    lst.write_text("0\t0\ta/a.jpg\n1\t7\ta/b.jpg\n")  # one folder, two labels: no names
    assert source.open("val").classes == tuple("01234567")
    lst.write_text("0\t0\ta.jpg\n")
    assert source.open("val").classes == tuple("01234567")


@pytest.mark.parametrize("line", ["0 0 a/x.jpg", "0\ta/x.jpg", "x\t0\ta/x.jpg", "0\tzero\ta/x.jpg", ""])
def test_a_list_with_wrong_columns(tmp_path, line):
    rec_pair(tmp_path, 3, 2)
    lst = tmp_path / "some_train.lst"
    lst.write_text(f"0\t0\ta/x.jpg\n{line}\n1\t1\tb/x.jpg\n")
    assert fault(Recordio(path=str(tmp_path))) == f"{lst}:2: expected number TAB label TAB path, got {line!r}"


def test_a_bad_image_is_named_by_file_record_and_byte(tmp_path):
    images = [jpeg(0), jpeg(1)[:300], jpeg(2)]
    write_rec(tmp_path / "train.rec", images, [0, 1, 2])
    told = fault(Recordio(path=str(tmp_path)))
    byte = 8 + 24 + len(images[0]) + -len(images[0]) % 4
    assert told.startswith(f"{tmp_path / 'train.rec'}: record 1 at byte {byte} is a JPEG that cannot be decoded (")
    split = Recordio(path=str(tmp_path), on_bad="skip").open("train")
    assert split.labels.tolist() == [0, NO_IMAGE, 2] and "1 of 3 images skipped; the first: " in split.notes[0]
    assert isinstance(split, Held) and np.unique(split.images[1]).tolist() == [104, 116, 124]
