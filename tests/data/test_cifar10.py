"""CIFAR-10 in every form it is found in, and a clear way out where it is not whole."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from shoal.data.source import Held, SourceError, Streamed
from shoal.data.sources.cifar10 import CLASSES, MEAN, STD, Cifar10
from small_images import cifar_files, cifar_rows, jpeg, real, rec_pair, write_files, write_rec


def archive(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


FORMS = {
    "torchvision's folder": lambda root: write_files(root / "cifar-10-batches-py", cifar_files()).parent,
    "that folder itself": lambda root: write_files(root / "cifar-10-batches-py", cifar_files()),
    "torchvision's archive": lambda root: archive(root / "cifar-10-python.tar.gz", cifar_files()).parent,
    "an archive itself": lambda root: archive(root / "mine.tar.gz", dict(reversed(cifar_files().items()))),
    "the binary folder": lambda root: write_files(root / "cifar-10-batches-bin", cifar_files(binary=True)).parent,
    "the binary archive": lambda root: archive(root / "cifar-10-binary.tar.gz", cifar_files(binary=True)).parent,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images(form, tmp_path):
    source = Cifar10(path=str(FORMS[form](tmp_path)))
    train, val = source.open("train"), source.open("val")
    assert isinstance(train, Held) and isinstance(val, Held)
    rows = [cifar_rows(seed, 12) for seed in range(6)]
    assert np.array_equal(train.images.reshape(60, -1), np.concatenate([images for images, _ in rows[:5]]))
    assert train.labels.tolist() == [label for _, labels in rows[:5] for label in labels]
    assert np.array_equal(val.images.reshape(12, -1), rows[5][0]) and val.labels.tolist() == rows[5][1].tolist()
    assert train.classes == val.classes == CLASSES
    assert train.shape == (3, 32, 32)  # red, green, blue; rows from the top
    assert len(Cifar10(path=source.path, limit=7).open("train").labels) == 7


def test_a_pair_of_rec_files(tmp_path):
    source = Cifar10(path=str(rec_pair(tmp_path, 20, 10)))
    train, val = source.open("train"), source.open("val")
    assert isinstance(train, Held) and train.shape == val.shape == (3, 32, 32)
    assert train.labels.tolist() == [number * 7 % 10 for number in range(20)] and len(val.labels) == 10
    streamed = Cifar10(path=str(tmp_path), memory_gib=0).open("train")
    assert isinstance(streamed, Streamed) and streamed.shape == (3, 32, 32)


def fault(**options: object) -> str:
    with pytest.raises(SourceError) as caught:
        Cifar10(**options).open("train")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nothing_there(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        told = fault(path=str(path))
        assert told.startswith(
            f"{path}: no CIFAR-10 here: none of the folders cifar-10-batches-py, cifar-10-batches-bin"
        )
        assert "data.path" in told and "data.download=true" in told


def test_a_download_without_a_network_tells_another_way(tmp_path):
    with patch("torchvision.datasets.CIFAR10", side_effect=OSError("Name or service not known\nmore")):
        told = fault(path=str(tmp_path / "new"), download=True)
    assert told == (
        f"{tmp_path / 'new'}: CIFAR-10 cannot be downloaded (Name or service not known); where there is a network "
        "fetch https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz and put it, as it is, into this folder"
    )


def test_a_download_is_torchvisions(tmp_path):
    def fetch(root: str, *, download: bool) -> None:
        assert download
        write_files(Path(root) / "cifar-10-batches-py", cifar_files())

    with patch("torchvision.datasets.CIFAR10", side_effect=fetch) as torchvisions:
        source = Cifar10(path=str(tmp_path / "new"), download=True)
        assert len(source.open("train").labels) == 60 and len(source.open("val").labels) == 12
    assert torchvisions.call_count == 1


class Evil:
    def __reduce__(self):
        return print, ("code of a stranger's",)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"data_batch_3": b"junk"}, "data_batch_3: is no batch of CIFAR-10 ("),
        ({"data_batch_3": b""}, "data_batch_3: is no batch of CIFAR-10 ("),
        ({"data_batch_1": pickle.dumps(Evil())}, "data_batch_1: is no batch of CIFAR-10 (it asks for builtins.print"),
        (
            {"data_batch_1": pickle.dumps({"labels": [1], "data": np.zeros((1, 7), np.uint8)})},
            "images [1, 7] for 1 labels",
        ),
        (
            {"data_batch_2": pickle.dumps({"labels": [10], "data": np.zeros((1, 3072), np.uint8)})},
            "image 0 has label 10",
        ),
    ],
)
def test_damaged_batches(files, told, tmp_path, capsys):
    folder = write_files(tmp_path / "cifar-10-batches-py", {**cifar_files(), **files})
    assert told in fault(path=str(tmp_path)) and str(folder) in fault(path=str(tmp_path))
    assert not capsys.readouterr().out


def test_batches_that_are_missing_or_cut(tmp_path):
    folder = write_files(tmp_path / "cifar-10-batches-bin", cifar_files(binary=True))
    (folder / "data_batch_5.bin").write_bytes((folder / "data_batch_5.bin").read_bytes()[:-1])
    assert "data_batch_5.bin: 36,875 bytes are no whole number of images of 3,073" in fault(path=str(tmp_path))
    (folder / "data_batch_5.bin").unlink()
    assert fault(path=str(tmp_path)) == (
        f"{folder / 'data_batch_5.bin'}: cannot be read (No such file or directory); CIFAR-10 is not whole here"
    )


def test_damaged_archives(tmp_path):
    path = archive(tmp_path / "cifar-10-python.tar.gz", cifar_files())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert fault(path=str(tmp_path)).startswith(f"{path}: is no whole archive (")
    path.write_bytes(b"<html>moved</html>")
    assert fault(path=str(tmp_path)).startswith(f"{path}: is no whole archive (")
    archive(path, {"data_batch_1": cifar_files()["data_batch_1"]})
    assert fault(path=str(tmp_path)).startswith(f"{path}: has no data_batch_2; ")


def test_rec_files_of_something_else(tmp_path):
    write_rec(tmp_path / "train.rec", [jpeg(0), jpeg(1)], [3, 10])
    told = fault(path=str(tmp_path))
    assert "train.rec: record 1 at byte" in told and "label 10; CIFAR-10 has 0 to 9 (other data: data=recordio)" in told
    write_rec(tmp_path / "more_train.rec", [jpeg(0)], [3])
    assert fault(path=str(tmp_path)).startswith(f"{tmp_path}: 2 files are named *train*.rec; one is needed")


def test_the_real_one():
    folder = real("cifar10_train.rec").parent
    source = Cifar10(path=str(folder))
    train, val = source.open("train"), source.open("val")
    assert isinstance(train, Held) and isinstance(val, Held)
    assert (len(train.labels), len(val.labels)) == (50_000, 10_000)
    assert np.bincount(train.labels).tolist() == [5_000] * 10
    assert [CLASSES[label] for label in train.labels[:4]] == ["bird", "automobile", "ship", "cat"]
    assert train.images.mean((0, 2, 3)) == pytest.approx(MEAN, abs=0.1)
    assert train.images.std((0, 2, 3)) == pytest.approx(STD, abs=0.6)  # JPEG has smoothed a little
