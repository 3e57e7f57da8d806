"""`shoal data`: what a person and a script are told, what each ends with, and that torch stays away."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.base.errors import ShoalError, UsageError
from shoal.cli import shoal
from small_images import cifar_files, class_folders, jpeg, rec_pair, write_files, write_rec


def run(*words: object) -> Result:
    return CliRunner().invoke(shoal, ["data", *map(str, words)])


def shown(path: Path) -> dict:
    result = run("show", path, "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == bool(told["wrong"])
    return told


def counts(told: dict) -> dict[str, dict[str, int]]:
    assert all(split["images"] == sum(split["classes"].values()) for split in told["splits"])
    return {split["name"]: split["classes"] for split in told["splits"]}


@pytest.fixture
def root(tmp_path) -> Path:
    class_folders(tmp_path / "train", {"ant": 3, "bee": 2})
    class_folders(tmp_path / "val", {"ant": 1, "bee": 1})
    return tmp_path


# show


@pytest.mark.parametrize("binary", [False, True])
def test_cifar10(tmp_path, binary):
    write_files(tmp_path / "cifar-10-batches-bin", cifar_files(binary=binary))
    told = shown(tmp_path)
    assert told["form"] == f"CIFAR-10, the {'binary version' if binary else 'version for Python'}"
    assert [sum(split.values()) for split in counts(told).values()] == [60, 12]
    assert counts(told)["val"]["airplane"] == 1 and told["wrong"] == []
    assert told["data"] == {"name": "cifar10", "path": str(tmp_path)}
    next(tmp_path.glob("*/data_batch_3*")).unlink()
    assert "CIFAR-10 is not whole here" in shown(tmp_path)["wrong"][0]


def test_records(tmp_path):
    told = shown(rec_pair(tmp_path))
    assert counts(told)["train"] == {str(number): 6 for number in range(10)}
    assert told["data"] == {"name": "recordio", "path": str(tmp_path)}
    assert shown(tmp_path / "some_val.rec")["form"] == "MXNet's RecordIO, one .rec with .idx beside it"
    with open(tmp_path / "some_val.rec", "rb+") as file:
        file.truncate(1000)
    (tmp_path / "some_val.idx").unlink()
    told = shown(tmp_path)
    assert list(counts(told)) == ["train"] and "the file is cut off at byte 1000" in told["wrong"][0]
    (tmp_path / "some_val.rec").unlink()
    assert "no file is named *val*.rec" in shown(tmp_path)["wrong"][0]


def test_images_without_a_label_and_classes_that_are_not_trained_on(tmp_path):
    write_rec(tmp_path / "train.rec", [jpeg(0), jpeg(1)], [0, -1])
    write_rec(tmp_path / "val.rec", [jpeg(0), jpeg(1)], [0, 3])
    told = shown(tmp_path)
    assert counts(told) == {"train": {"0": 1, "(no class)": 1}, "val": {"0": 1, "3": 1}}
    assert told["wrong"] == [f"{tmp_path / 'val.rec'}: label 3 is no class of {tmp_path / 'train.rec'}"]


def test_a_list(tmp_path):
    (tmp_path / "x.lst").write_text("0\t1\ta/x.jpg\n1\t1\ta/y.jpg\n2\t0\tb/z.jpg\n")
    told = shown(tmp_path / "x.lst")
    assert counts(told) == {"images": {"0": 1, "1": 2}} and told["mend"][0].startswith("shoal data pack FOLDER ")
    (tmp_path / "x.lst").write_text("0 1 a/x.jpg\n")
    assert ".lst:1: expected `number TAB class number TAB path`" in shown(tmp_path / "x.lst")["wrong"][0]


def test_class_folders(root):
    told = shown(root)
    assert told["form"] == "class folders below train and val, as ImageNet's" and told["wrong"] == []
    assert counts(told) == {"train": {"ant": 3, "bee": 2}, "val": {"ant": 1, "bee": 1}}
    alone = shown(root / "train")
    assert alone["form"] == "class folders; no validation folder" and counts(alone) == {"images": {"ant": 3, "bee": 2}}
    (root / "val/cow").mkdir()
    assert shown(root)["wrong"] == [
        f"{root / 'val'}: no images in class folder cow",
        f"{root / 'val'}: no class cow in {root / 'train'}",
    ]


def test_a_flat_validation_folder_and_the_command_that_mends_it(root):
    for name in ("ant", "bee"):
        (root / f"val/{name}/000.jpg").rename(root / f"val/{name}.jpg")
        (root / f"val/{name}").rmdir()
    told = shown(root)
    mended = f"{root / 'val'}-by-class"
    assert told["wrong"] == [f"{root / 'val'}: 2 images lie flat in it, without class folders"]
    assert told["mend"] == [f"shoal data pack {root / 'val'} {mended} --labels FILE --classes {root / 'train'}"]
    assert told["data"] == {"name": "folder", "path": str(root), "val": mended}
    labels = root / "labels.txt"
    labels.write_text("ant.jpg 0\nbee.jpg 1\n")
    result = run(*told["mend"][0].replace("FILE", str(labels)).split()[2:])
    assert result.exit_code == 0 and result.stdout == f"{mended}: 2 images of 2 classes\n"
    assert shown(Path(mended))["wrong"] == []
    assert shown(root / "val")["form"] == "images without class folders"


def test_many_classes_are_summed_up(tmp_path):
    class_folders(tmp_path / "train", {f"c{number:02}": 1 + number % 2 for number in range(20)})
    result = run("show", tmp_path)
    assert result.exit_code == 0 and "class folders below train; no validation folder\n" in result.stdout
    assert "    val_share: 0.2\n" in result.stdout
    assert f"  shoal train own-images data.path={tmp_path}\n" in result.stdout
    assert re.search(r"^c09 +2$", result.stdout, re.MULTILINE)
    assert re.search(r"^… 10 more +15 \(1 to 2 each\)$", result.stdout, re.MULTILINE)
    assert "  data:\n    name: folder\n" in result.stdout


@pytest.mark.parametrize("name", ["no", "empty", "a.txt"])
def test_nothing_to_read(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").touch()
    result = run("show", tmp_path / name)
    assert isinstance(result.exception, ShoalError) and str(result.exception).startswith(f"{tmp_path / name}: ")


def test_names_that_are_not_utf8(root):
    os.rename(root / "train/ant", os.fsencode(root / "train") + b"/\xff")
    os.rename(root / "val/ant", os.fsencode(root / "val") + b"/\xff")
    assert counts(shown(root))["train"] == {"bee": 2, "\\xff": 3}
    assert run("show", root).exit_code == 0


def test_a_picture_of_images_before_and_after_augmentation(root):
    from PIL import Image

    words = ("show", root, "--picture", root / "sheet.png", "--images", 3, "--recipe", "own-images")
    assert run(*words, "data.augment.size=16").exit_code == 0
    first = (root / "sheet.png").read_bytes()
    with Image.open(root / "sheet.png") as image:
        assert (image.width / 7) % 1 == 0 and (image.height / 3) % 1 == 0 and len(image.getcolors(1 << 20) or ()) > 100
    run(*words, "data.augment.size=16")
    assert (root / "sheet.png").read_bytes() == first
    run(*words, "data.augment.size=16", "seed=9")
    assert (root / "sheet.png").read_bytes() != first


def test_a_picture_that_cannot_be_drawn(root):
    for words, told in (
        (("show", root, "seed=1"), "seed=1: is for the images of a --picture FILE"),
        (("show", root, "--picture", root / "no/x.png"), "no such folder to write a file in"),
        (("show", root, "--picture", root / "x.png", "data.augment.size=null"), "need data.augment.size"),
        (("show", root, "--picture", root / "x.png", "data.augment.sice=3"), "data.augment.sice"),
    ):  # fmt: skip
        result = run(*words)
        assert isinstance(result.exception, UsageError) and told in str(result.exception)
    assert not (root / "x.png").exists()


# pack


def test_bad_images_are_named_and_end_with_1(root):
    (root / "train/ant/000.jpg").write_bytes(b"")
    result = run("pack", root / "train", root / "t.rec")
    assert isinstance(result.exception, ShoalError) and result.exception.exit_code == 1
    assert result.stderr == f"BAD: {root / 'train/ant/000.jpg'} is empty (0 bytes)\n"
    result = run("pack", root / "train", root / "t.rec", "--on-bad", "skip")
    assert result.exit_code == 0
    assert result.stdout == f"{root / 't.rec'}: 4 images of 2 classes; 1 left out\n"


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGKILL", -9)])
def test_stopped_in_the_middle_the_same_command_goes_on(tmp_path, name, code):
    (tmp_path / "src/a").mkdir(parents=True)
    size = (tmp_path / "src/a/0.jpg").write_bytes(jpeg(1, 1000))
    for number in range(1, 100):
        os.link(tmp_path / "src/a/0.jpg", tmp_path / f"src/a/{number}.jpg")
    words = [sys.executable, "-m", "shoal", "data", "pack", str(tmp_path / "src"), str(tmp_path / "out/t.rec")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while not any(file.stat().st_size > 3 * size for file in (tmp_path / "out").glob(".t.rec.*/t.rec")):
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(getattr(signal, name))
        _, told = process.communicate(timeout=400)
    assert process.returncode == code and "Traceback" not in told
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".t.rec.packing"]
    assert ("the same command goes on from here" in told) == (name != "SIGKILL")
    done = run("pack", tmp_path / "src", tmp_path / "out/t.rec")
    assert done.stdout == f"{tmp_path / 'out/t.rec'}: 100 images of 1 classes\n"
    assert name == "SIGKILL" or re.match(r"going on after \d+ of 100 images\n", done.stderr)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["t.crc.npy", "t.idx", "t.lst", "t.rec"]


DRIVER = """
import sys
from shoal.cli import main
try:
    main()
except SystemExit as end:
    heavy = {"torch", "timm", "torchvision", "matplotlib"} & sys.modules.keys()
    print(f"\\nexit {end.code}, heavy: {sorted(heavy)}", file=sys.stderr)
"""


def test_torch_stays_away_until_images_are_decoded(root):
    flat, dst = root / "val/ant", root / "new"
    for words, code in (
        (["--help"], 0),
        (["pack", "--help"], 0),
        (["shw"], 2),
        (["show", root], 0),
        (["show", root / "no"], 1),
        (["pack", root / "train"], 2),
        (["pack", flat, dst], 2),
        (["pack", flat, dst, "--on-bad", "x"], 2),
        (["pack", flat, root / "train"], 2),
        (["pack", flat, dst, "--labels", root / "no.txt"], 1),
    ):
        argv = [sys.executable, "-c", DRIVER, "data", *map(str, words)]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.stderr.splitlines()[-1] == f"exit {code}, heavy: []", (words, done.stderr)
        assert "Traceback" not in done.stderr


# check


def test_check_tells_all_and_ends_with_1_where_something_is_wrong(root):
    result = run("check", root)
    assert result.exit_code == 1  # the same pictures under the same names in both splits
    assert "WRONG: images in both splits" in result.stdout and result.stdout.rstrip().endswith("something is wrong")
    told = json.loads(run("check", root, "--json").stdout)
    assert [split["images"] for split in told["splits"]] == [5, 2] and not told["well"]
    for number, file in enumerate(sorted((root / "val").rglob("*.jpg"))):
        file.write_bytes(jpeg(700 + number))
    result = run("check", root, "--threads", "1")
    assert result.exit_code == 0 and result.stdout.rstrip().endswith("all is well"), result.stdout
    (root / "val/ant/000.jpg").write_bytes(b"none")
    result = run("check", root)
    assert result.exit_code == 1 and "BAD: " in result.stderr and "1 bad images, told above" in result.stdout
