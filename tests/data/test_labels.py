"""Label files: every form that people have, and every way in which one is wrong, told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.base.errors import ShoalError
from shoal.data.labels import read_labels

NAMES = [f"ILSVRC2012_val_{number:08}.JPEG" for number in (1, 2, 3)]
IMAGES = {name: f"src/{name}" for name in NAMES}
KIT = "n02119789 1 kit_fox\nn02100735 2 English_setter\nn01751748 3 sea_snake\n"

FORMS = {
    "caffe": (f"{NAMES[0]} 65\n{NAMES[1]} 970\n{NAMES[2]} 65\n", ["65", "970", "65"], True),
    "caffe, with folders": ("".join(f"val/{name}\t{n}\r\n" for n, name in enumerate(NAMES)), ["0", "1", "2"], True),
    "names": (f"{NAMES[0]} cat\n\n{NAMES[1]} dog\n{NAMES[2]} 7\n", ["cat", "dog", "7"], False),
    "csv": (f'name,label\n"{NAMES[0]}",cat\n{NAMES[1]},a dog\n{NAMES[2]},cat\n', ["cat", "a dog", "cat"], False),
    "csv, marked as UTF-8": ("\ufeff" + "".join(f"{name},1\n" for name in NAMES), ["1"] * 3, True),
    "kaggle": (
        "ImageId,PredictionString\nILSVRC2012_val_00000003,n1 85 1 499 272 \n"
        "ILSVRC2012_val_00000001,n2 1 2 3 4 n2 5 6 7 8\nILSVRC2012_val_00000002,n1 1 2 3 4\n",
        ["n2", "n1", "n1"],
        False,
    ),
    "mxnet": ("".join(f"{n}\t{n}.000000\tval/{name}\n" for n, name in enumerate(NAMES)), ["0", "1", "2"], True),
}


def labels_of(folder: Path, text: str | bytes, images: dict[str, str] = IMAGES, synsets: str | None = None):
    file, explained = folder / "labels.txt", folder / "synsets.txt"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    if synsets is not None:
        explained.write_text(synsets)
    read = read_labels(file, images, explained if synsets is not None else None)
    return read, {path: label.label for path, label in read.of(images, Path("src"))}


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form, tmp_path):
    text, wanted, numbers = FORMS[form]
    read, given = labels_of(tmp_path, text)
    assert [given[f"src/{name}"] for name in NAMES] == wanted and read.numbers == numbers


def test_ilsvrcs_numbers_are_explained_by_its_own_order(tmp_path):
    for synsets in (KIT, "n02119789\nn02100735\nn01751748\n"):
        _, given = labels_of(tmp_path, "3\n1\n3\n", synsets=synsets)
        assert list(given.values()) == ["n01751748", "n02119789", "n01751748"]


def test_several_labels_of_a_list(tmp_path):
    read, _ = labels_of(tmp_path, "".join(f"{n}\t{n}\t0.5\t2\t{name}\n" for n, name in enumerate(NAMES)))
    assert read.lines[1].more == (0.5, 2.0)


def test_names_that_are_not_utf8(tmp_path):
    images = {"caf\udce9.jpg": "x"}
    _, given = labels_of(tmp_path, b"caf\xe9.jpg \xfe\n", images)
    assert given == {"x": "\udcfe"}
    with pytest.raises(ShoalError, match=r"labels\.txt:2: no image 'b\\xe9\.jpg' in src"):
        labels_of(tmp_path, b"caf\xe9.jpg a\nb\xe9.jpg a\n", images)


GOOD = "".join(f"{name} 0\n" for name in NAMES)
WRONG = {
    "empty": ("", None, "labels.txt: holds no labels"),
    "one column": (
        f"{NAMES[0]} 0\n{NAMES[1]}\n",
        None,
        ":2: expected `name label`, got 'ILSVRC2012_val_00000002.JPEG'",
    ),
    "three columns": (f"{NAMES[0]},0\n{NAMES[1]},0,1\n", None, ":2: expected `name,label`, got '"),
    "kaggle's boxes": (
        "ImageId,PredictionString\nx,n1 85 1\n",
        None,
        ":2: expected `ImageId,CLASS X Y X Y …`, got 'x,n1",
    ),
    "two classes": ("ImageId,PredictionString\nx,n1 1 1 1 1 n2 1 1 1 1\n", None, ":2: 2 classes in one image"),
    "a list's label": ("0\t0\ta.jpg\n1\t0.5\tb.jpg\n", None, ":2: expected `number TAB class number TAB path`"),
    "label without image": (GOOD + "x.jpg 1\ny.jpg 1\n", None, ":4: no image 'x.jpg' in src (nor for 1 other names)"),
    "image without label": (f"{NAMES[1]} 0\n", None, f"src/{NAMES[0]}: has no label in "),
    "twice": (GOOD + f"{NAMES[1]} 1\n", None, f":4: '{NAMES[1]}' was named before, in line 2"),
    "no synsets": ("1\n2\n3\n", None, "--synsets FILE names them (map_clsloc.txt"),
    "caffe's synsets": ("1\n2\n3\n", "n01\nn02\nn03\n", "are in the order of their names, as Caffe's synsets.txt"),
    "no such number": ("1\n2\n4\n", KIT, ":3: no class 4 in "),
    "synsets without numbers": ("1\n2\n3\n", "n01 fox\n", "synsets.txt:1: expected `CLASS NUMBER`, got 'n01 fox'"),
    "a number twice": ("1\n2\n3\n", "n01 1\nn02 1\n", "synsets.txt:2: class 1 was named before"),
    "more lines than images": ("1\n2\n3\n1\n", KIT, ":4: no image '*_00000004.*' in src"),
    "synsets for names": (GOOD, KIT, "--synsets explains a file of one ILSVRC number per line"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told_with_its_line(case, tmp_path):
    text, synsets, told = WRONG[case]
    with pytest.raises(ShoalError) as caught:
        labels_of(tmp_path, text, synsets=synsets)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_lines_without_names_need_images_with_numbers(tmp_path):
    with pytest.raises(ShoalError, match=r"line n is of the image whose name ends in _0000000n, and 'a\.jpg' does not"):
        labels_of(tmp_path, "1\n", {"a.jpg": "a.jpg"}, KIT)


def test_a_name_that_several_images_have(tmp_path):
    images = {"a/x.jpg": "1", "b/x.jpg": "2"}
    assert labels_of(tmp_path, "a/x.jpg 0\nb/x.jpg 1\n", images)[1] == {"1": "0", "2": "1"}
    with pytest.raises(ShoalError, match=r":1: 'x\.jpg' may be any of 2 images, as 'a/x\.jpg' and 'b/x\.jpg'"):
        labels_of(tmp_path, "x.jpg 0\n", images)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ShoalError, match=r"no\.txt: cannot be read \(No such file or directory\)"):
        read_labels(tmp_path / "no.txt", IMAGES)
