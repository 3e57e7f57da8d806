"""Packing: what is written is read back by the sources, bytes and labels; or nothing is left, and SRC is as it was."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from shoal.base.errors import ShoalError, UsageError
from shoal.data.image import decode, resized
from shoal.data.packed import OnBad, aside_of, write
from shoal.data.packing import Packing, arranged, plan
from shoal.data.recoding import Recoding
from shoal.data.source import Streamed
from shoal.data.sources.folder import Folder
from shoal.data.sources.recordio import Recordio
from small_images import class_folders, jpeg

CLASSES = {"ant": 3, "bee": 2, "cat": 2}


@pytest.fixture
def root(tmp_path) -> Iterator[Path]:
    """imagenet/train in class folders, imagenet/val flat; val.txt as Caffe's. No test may change what lies in it."""
    root = tmp_path / "imagenet"
    class_folders(root / "train", CLASSES)
    (root / "val").mkdir()
    for number in range(1, 5):
        (root / f"val/v_{number:08}.JPEG").write_bytes(jpeg(50 + number, 40, 52))
    (tmp_path / "val.txt").write_text("".join(f"v_{number:08}.JPEG {number % 3}\n" for number in range(1, 5)))
    yield root


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(*places: object, error: type[ShoalError] = ShoalError, **options: object) -> str:
    with pytest.raises(error) as caught:
        write([plan(*places, **options)])  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def held(split: object) -> list[tuple[bytes, int]]:
    assert isinstance(split, Streamed)
    return [(bytes(split.read(index)), int(label)) for index, label in enumerate(split.labels)]


# Round trips


def test_class_folders_as_records(root, tmp_path):
    before = contents(root)
    train, val = tmp_path / "out/train.rec", tmp_path / "out/val.rec"
    (packed,) = write([plan(root / "train", train)])
    assert (packed.images, packed.classes, packed.bad) == (7, 3, 0)
    write([plan(root / "val", val, tmp_path / "val.txt", root)])
    assert left(tmp_path / "out") == {
        f"{name}.{ending}" for name in ("train", "val") for ending in ("rec", "idx", "lst", "crc.npy")
    }
    files, records = Folder(path=str(root)), Recordio(path=str(tmp_path / "out"), memory_gib=0)
    assert held(records.open("train")) == held(files.open("train"))
    assert records.open("val").classes == files.open("train").classes == ("ant", "bee", "cat")
    assert held(records.open("val")) == [(jpeg(50 + number, 40, 52), number % 3) for number in range(1, 5)]
    assert contents(root) == before


def test_a_validation_split_is_numbered_as_the_training_folder(root, tmp_path):
    class_folders(tmp_path / "v", {"bee": 1, "cat": 1})
    write([plan(tmp_path / "v", tmp_path / "v.rec", classes=root / "train")])
    assert Recordio(path=str(tmp_path / "v.rec")).open("train").labels.tolist() == [1, 2]


def test_a_flat_folder_becomes_class_folders_of_the_same_files(root, tmp_path):
    before = contents(root)
    dst = root / "val-by-class"
    (packed,) = write([plan(root / "val", dst, tmp_path / "val.txt", root / "train")])
    assert (packed.images, packed.copied) == (4, 0)
    source = Folder(path=str(root), val=str(dst), memory_gib=0)
    assert sorted(held(source.open("val"))) == sorted((jpeg(50 + n, 40, 52), n % 3) for n in range(1, 5))
    assert os.path.samefile(dst / "bee/v_00000001.JPEG", root / "val/v_00000001.JPEG")
    shutil.rmtree(dst)
    assert contents(root) == before


def test_copies_where_links_cannot_be(root, tmp_path):
    with patch("os.link", side_effect=OSError(errno.EXDEV, "Invalid cross-device link")):
        (packed,) = write([plan(root / "val", tmp_path / "dst", tmp_path / "val.txt", root / "train")])
    assert packed.copied == 4
    assert (tmp_path / "dst/bee/v_00000001.JPEG").read_bytes() == jpeg(51, 40, 52)


def test_labels_by_name_need_no_training_folder(root, tmp_path):
    (tmp_path / "val.txt").write_text("".join(f"v_{n:08}.JPEG,{'dog' if n % 2 else 'cow'}\n" for n in range(1, 5)))
    write([plan(root / "val", tmp_path / "dst", tmp_path / "val.txt")])
    assert left(tmp_path / "dst") == {"cow", "dog"}
    write([plan(root / "val", tmp_path / "v.rec", tmp_path / "val.txt")])
    split = Recordio(path=str(tmp_path / "v.rec")).open("train")
    assert split.classes == ("cow", "dog") and split.labels.tolist() == [1, 0, 1, 0]


def test_several_labels_are_kept_in_records(root, tmp_path):
    lst = tmp_path / "val.lst"
    lst.write_text("".join(f"{n}\t{n % 3}\t{n}.5\tval/v_{n:08}.JPEG\n" for n in range(1, 5)))
    write([plan(root / "val", tmp_path / "v.rec", lst)])
    from shoal.data.recordio import Records

    assert Records(tmp_path / "v.rec").labels(1).tolist() == [1.5, 2.5, 3.5, 4.5]
    assert "several labels, and a folder is of one class" in refused(
        root / "val", tmp_path / "d", lst, root / "train", error=UsageError
    )


def test_names_that_are_not_utf8(tmp_path):
    src = tmp_path / "src"
    src.mkdir()
    (src / "caf\udce9.jpg").write_bytes(jpeg(1))
    (tmp_path / "labels.txt").write_bytes(b"caf\xe9.jpg \xfe\xfe\n")
    write([plan(src, tmp_path / "dst", tmp_path / "labels.txt")])
    assert os.listdir(os.fsencode(tmp_path / "dst/\udcfe\udcfe")) == [b"caf\xe9.jpg"]
    write([plan(tmp_path / "dst", tmp_path / "d.rec")])
    assert (tmp_path / "d.lst").read_bytes() == b"0\t0\t\xfe\xfe/caf\xe9.jpg\n"
    assert Recordio(path=str(tmp_path / "d.rec")).open("train").classes == ("\\xfe\\xfe",)


# Bad images


def test_bad_images_are_all_named_and_nothing_is_written(root, tmp_path):
    (root / "train/ant/000.jpg").write_bytes(b"")
    (root / "train/cat/001.jpg").write_bytes(jpeg(1)[:200])
    told: list[str] = []
    with pytest.raises(ShoalError, match=r"^2 of 7 images cannot be decoded; nothing was written: mend or .* skip$"):
        write([plan(root / "train", tmp_path / "out/t.rec")], told=told.append)
    assert [line.partition(" ")[0][-11:] for line in told] == ["ant/000.jpg", "cat/001.jpg"]
    assert "is empty (0 bytes)" in told[0] and left(tmp_path / "out") == set()
    (packed,) = write([plan(root / "train", tmp_path / "out/t.rec")], "skip")
    assert (packed.images, packed.bad) == (5, 2)
    assert Recordio(path=str(tmp_path / "out/t.rec")).open("train").labels.tolist() == [0, 0, 1, 1, 2]


def test_only_bad_images(tmp_path):
    (tmp_path / "src/a").mkdir(parents=True)
    (tmp_path / "src/a/x.jpg").touch()
    with pytest.raises(ShoalError, match="none of 1 images can be decoded; nothing was written"):
        write([plan(tmp_path / "src", tmp_path / "d.rec")], "skip")
    assert left(tmp_path) == {"src"}


# Nothing half-written


@pytest.mark.parametrize("dst", ["out/t.rec", "out/t"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_whatever_happens_nothing_is_left(root, tmp_path, dst, error):
    planned = plan(root / "val", tmp_path / dst, tmp_path / "val.txt", root / "train")
    where = "shoal.data.recordio.Writer.write" if dst.endswith(".rec") else "os.link"
    wanted = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ShoalError
    with patch(where, side_effect=error), pytest.raises(wanted) as caught:
        write([planned])
    assert left(tmp_path / "out") == set()
    if wanted is ShoalError:
        assert str(caught.value) == (
            f"{tmp_path / dst}: cannot be written (No space left on device); nothing was left there"
        )


def test_a_place_that_cannot_be_written_to(root, tmp_path):
    (tmp_path / "file").touch()
    told = refused(root / "train", tmp_path / "file/t.rec")
    assert told.startswith(f"{tmp_path / 'file/t.rec'}: cannot be written (")


def test_an_image_that_vanishes_is_a_bad_one(root, tmp_path):
    planned = plan(root / "train", tmp_path / "t.rec")
    (root / "train/ant/001.jpg").unlink()
    told: list[str] = []
    with pytest.raises(ShoalError, match="1 of 7 images cannot be decoded"):
        write([planned], told=told.append)
    assert told[0].endswith("ant/001.jpg cannot be read (No such file or directory)")


# Interrupted, and gone on with


class Stop:
    """Hears how many images were looked at, and interrupts at one of them."""

    def __init__(self, at: int) -> None:
        self.at, self.kept = at, 0

    def __call__(self, count: int) -> None:
        if count == self.at:
            raise KeyboardInterrupt

    def held(self, count: int) -> None:
        self.kept = count


def interrupted(packings: Sequence[Packing], at: int, on_bad: OnBad = "skip") -> list[str]:
    """Names of what was left."""
    with pytest.raises(KeyboardInterrupt):
        write(packings, on_bad, threads=2, done=Stop(at))
    return sorted(path.name for path in aside_of(packings).iterdir()) if aside_of(packings).exists() else []


@pytest.fixture
def several(tmp_path) -> tuple[Packing, ...]:
    """Two files of 14 and 6 images, of which one is bad in each."""
    class_folders(tmp_path / "in", {"ant": 12, "bee": 8}, sizes=((40, 50), (16, 20)))
    packings = arranged(plan(tmp_path / "in", tmp_path / "out/x.rec"), Recoding(30), shuffle=True, splits=(0.7, 0.3))
    for packing in packings:
        Path(packing.images[2].path).write_bytes(b"none")
    return packings


@pytest.mark.parametrize("places", [(5,), (14,), (15,), (3, 9, 18), (2,), (19,)], ids=str)
def test_going_on_gives_the_same_bytes(several, tmp_path, places):
    for place in places:
        assert "of" in interrupted(several, place) and left(tmp_path / "out") == {".x_train.rec.packing"}
    stop, told = Stop(0), []
    packed = write(several, "skip", kept=stop.held, told=told.append)
    assert stop.kept == places[-1] if places[-1] <= 14 else stop.kept > 14
    assert [one.bad for one in packed] == [1, 1] and len(told) == 2
    went_on = contents(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    assert write(several, "skip") == packed
    assert contents(tmp_path / "out") == went_on and len(went_on) == 8


@pytest.mark.parametrize("change", ["image", "record", "journal", "bad", "option"])
def test_what_changed_meanwhile_is_not_gone_on_with(several, tmp_path, change):
    interrupted(several, 9)
    aside, on_bad = aside_of(several), "skip"
    if change == "image":
        Path(several[0].images[1].path).write_bytes(jpeg(900, 40))
    elif change == "record":
        os.truncate(aside / "x_train.rec", 3000)
    elif change == "journal":
        with open(aside / "x_train.journal", "ab") as file:
            file.write(b"\0\0\0")
    elif change == "bad":  # as after an error of the disk that has gone
        with patch("shoal.data.packed.decode", side_effect=lambda data: decode(jpeg(7) if data == b"none" else data)):
            assert [one.bad for one in write(several, on_bad)] == [0, 0]
        return
    else:
        several = tuple(replace(packing, recoding=Recoding(20)) for packing in several)
    stop = Stop(0)
    write(several, on_bad, kept=stop.held)
    assert stop.kept == {"image": 0, "record": 4, "journal": 9, "option": 0}[change]
    went_on = contents(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    write(several, on_bad)
    assert contents(tmp_path / "out") == went_on


def test_two_do_not_write_the_same_at_once(several):
    aside = aside_of(several)
    aside.mkdir(parents=True)
    with open(aside / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ShoalError, match=r"x_train\.rec: another `shoal data pack` is writing it"):
            write(several)
    assert aside.exists()


# What is refused before anything is written


def test_places_that_are_refused(root, tmp_path):
    dst = tmp_path / "t.rec"
    for ending in (".rec", ".idx", ".lst"):
        dst.with_suffix(ending).touch()
        assert refused(root / "train", dst, error=UsageError).startswith(f"{dst.with_suffix(ending)}: exists already")
        dst.with_suffix(ending).unlink()
    assert "no such folder (SRC)" in refused(tmp_path / "no", dst, error=UsageError)
    assert "is a file; SRC is a folder" in refused(tmp_path / "val.txt", dst, error=UsageError)
    inside = root / "train/x.rec"
    assert refused(root / "train", inside, error=UsageError) == (
        f"{inside}: lies in SRC, which is never changed; name another DST"
    )
    (tmp_path / "empty").mkdir()
    assert "holds no class folders" in refused(tmp_path / "empty", dst)
    assert "holds no images" in refused(tmp_path / "empty", dst, tmp_path / "val.txt")
    (tmp_path / "empty/ant").mkdir()
    assert "holds no images" in refused(tmp_path / "empty", dst)


def test_forms_that_are_refused_with_what_would_be_right(root, tmp_path):
    dst = tmp_path / "t.rec"
    assert "its images lie flat, and nothing says of which class they are; --labels FILE does" in refused(
        root / "val", dst, error=UsageError
    )
    assert f"pack each: shoal data pack {root / 'train'} {tmp_path / 't'}_train.rec, then " in refused(
        root, dst, error=UsageError
    )
    assert "has class folders already" in refused(root / "train", tmp_path / "t", error=UsageError)
    numbers = refused(root / "val", tmp_path / "t", tmp_path / "val.txt", error=UsageError)
    assert "its labels are numbers, and class folders need names: --classes TRAINFOLDER" in numbers
    assert "give it with --labels" in refused(root / "train", dst, synsets=tmp_path / "val.txt", error=UsageError)


def test_classes_that_are_not_there(root, tmp_path):
    dst, labels = tmp_path / "t.rec", tmp_path / "val.txt"
    class_folders(tmp_path / "other", {"ant": 1, "dog": 1})
    assert refused(tmp_path / "other", dst, classes=root) == (
        f"{tmp_path / 'other/dog'}: no class of this name in the folder of --classes"
    )
    told = refused(root / "val", dst, labels, tmp_path / "other")
    assert told == f"{labels}:2: no class '2' in the folder of --classes, which has 2 classes"
    labels.write_text(labels.read_text().replace(" 1\n", " dog\n"))
    assert f"{labels}:1: no class 'dog' in the folder of --classes" in refused(root / "val", dst, labels, root)
    labels.write_text("".join(f"v_{n:08}.JPEG a/b\n" for n in range(1, 5)))
    assert "class 'a/b' cannot be the name of a folder" in refused(root / "val", tmp_path / "t", labels)


def test_classes_that_are_called_numbers(root, tmp_path):
    class_folders(tmp_path / "train", {"2": 1, "10": 1})  # in the order of their names: 10, 2
    labels = tmp_path / "val.txt"
    labels.write_text("".join(f"v_{n:08}.JPEG {2 if n % 2 else 10}\n" for n in range(1, 5)))
    planned = plan(root / "val", tmp_path / "t.rec", labels, tmp_path / "train")
    assert planned.classes == ("10", "2") and [image.label for image in planned.images] == [1, 0, 1, 0]


# Smaller, mixed, dealt out


def test_larger_images_become_smaller_once(tmp_path):
    class_folders(tmp_path / "in", {"ant": 2}, sizes=((40, 100), (16, 20)))
    (packing,) = arranged(plan(tmp_path / "in", tmp_path / "small.rec"), Recoding(20, 90))
    assert write([packing])[0].images == 2
    large, small = (data for data, _ in held(Recordio(path=str(packing.dst), memory_gib=0).open("train")))
    assert small == jpeg(1, 16, 20)  # its very bytes
    image, whole = decode(large), decode(jpeg(0, 40, 100))
    assert image.shape == (3, 20, 50) and len(large) < len(jpeg(0, 40, 100))
    assert (image.float() - resized(whole, 20, 50).float()).abs().mean() < 3
    assert write([replace(packing, dst=tmp_path / "again.rec")], threads=3)[0].images == 2
    assert (tmp_path / "again.rec").read_bytes() == packing.dst.read_bytes()


def test_shuffled_classes_are_mixed_the_same_way_every_time(tmp_path):
    class_folders(tmp_path / "in", {"ant": 20, "bee": 20})
    plain = plan(tmp_path / "in", tmp_path / "x.rec")
    (mixed,) = arranged(plain, shuffle=True)
    assert set(mixed.images) == set(plain.images) and mixed.images == plain.shuffled().images
    labels = [image.label for image in mixed.images]
    assert 8 < sum(one != other for one, other in itertools.pairwise(labels)) < 32


def test_splits_deal_out_each_class(tmp_path):
    class_folders(tmp_path / "in", {"ant": 20, "bee": 10})
    packings = arranged(plan(tmp_path / "in", tmp_path / "x.rec"), splits=(0.7, 0.2, 0.1))
    assert [packing.dst.name for packing in packings] == ["x_train.rec", "x_val.rec", "x_test.rec"]
    counts = [[sum(image.label == label for image in packing.images) for label in (0, 1)] for packing in packings]
    assert counts == [[14, 7], [4, 2], [2, 1]]
    assert len({image.path for packing in packings for image in packing.images}) == 30
    write(packings)
    split = Recordio(path=str(tmp_path), memory_gib=0).open("val")
    assert split.classes == ("ant", "bee") and len(split.labels) == 6


@pytest.mark.parametrize(
    ("splits", "told"),
    [((0.5,), "two or three that make 1"), ((0.9, 0.2), "that make 1"), ((0.5, -0.5, 1.0), "that make 1"),
     ((0.999, 0.001), "no image is left for x_val.rec; 5 are too few")],
)  # fmt: skip
def test_shares_that_are_none(tmp_path, splits, told):
    class_folders(tmp_path / "in", {"ant": 5})
    with pytest.raises(UsageError, match=re.escape(told)):
        arranged(plan(tmp_path / "in", tmp_path / "x.rec"), splits=splits)


def test_a_split_that_is_there_is_not_replaced_and_folders_hold_files_themselves(root, tmp_path):
    (tmp_path / "x_val.rec").touch()
    with pytest.raises(UsageError, match=r"x_val\.rec: exists already"):
        arranged(plan(root / "train", tmp_path / "x.rec"), splits=(0.5, 0.5))
    folders = plan(root / "val", tmp_path / "dst", tmp_path / "val.txt", root / "train")
    with pytest.raises(UsageError, match="--resize, --shuffle and --splits are for a DST"):
        arranged(folders, Recoding(20))
