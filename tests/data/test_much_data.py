"""Much data and bad data: memory that stays flat, a hundred thousand classes, headers that announce the moon."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from shoal.base.duration import Span
from shoal.base.host import resident_peak
from shoal.data.augment import Augment
from shoal.data.batches import Batches, Cut
from shoal.data.decoder import Decoder
from shoal.data.image import ImageError, decode
from shoal.data.recordio import Records
from shoal.data.source import NO_IMAGE, SourceError
from shoal.data.sources.folder import Folder
from shoal.data.sources.recordio import Recordio
from shoal.recipe.part import kind, names
from small_images import class_folders, encoded, jpeg, picture, write_rec

MIB = 1 << 20


def with_size(form: str, width: int, height: int) -> bytes:
    """A small image whose header announces that size."""
    data = bytearray(encoded(picture(1), form, **({"lossless": True} if form == "WEBP" else {})))
    if form == "PNG":
        data[16:24] = struct.pack(">II", width, height)
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    elif form == "JPEG":
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    elif form == "GIF":
        data[6:10] = struct.pack("<HH", width, height)
    elif form == "BMP":
        data[18:26] = struct.pack("<ii", width, height)
    else:  # WebP, lossless: 14 bits each
        width, height = min(width, 1 << 14), min(height, 1 << 14)
        data[21:24] = ((width - 1) | (height - 1) << 14 | data[24] >> 4 << 28).to_bytes(4, "little")[:3]
        data[24] = data[24] & 0xF0 | (height - 1) >> 10
    return bytes(data)


@pytest.mark.parametrize("form", ["BMP", "GIF", "JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("decoder", names("decoders"))
def test_an_image_that_announces_the_moon_is_refused_before_memory_is_taken(form, decoder):
    cls = kind("decoders", decoder)
    assert cls is not None and issubclass(cls, Decoder)
    if cls().fits():
        pytest.skip(f"{decoder} cannot be used here")
    decode(with_size(form, 32, 32), cls().ready())
    before = resident_peak()
    with pytest.raises(ImageError, match=r"more than 89,478,485 (pixels|in all); scale it down"):
        decode(with_size(form, 60_000, 60_000), cls().ready())
    assert resident_peak() - before < 64 * MIB


def test_a_folder_that_changes_while_it_is_trained_on(tmp_path, capsys):
    class_folders(tmp_path / "train", {"ant": 4, "bee": 4})
    stopping, skipping = (Folder(path=str(tmp_path), on_bad=on_bad).open("train") for on_bad in ("stop", "skip"))
    (tmp_path / "train/ant/001.jpg").unlink()
    os.replace(tmp_path / "train/bee/000.jpg", tmp_path / "train/ant/002.jpg")
    shutil.rmtree(tmp_path / "train/bee")
    with pytest.raises(SourceError) as caught:
        stopping.image(1)
    assert str(caught.value) == (
        f"{tmp_path / 'train/ant/001.jpg'} is no longer there; it was when the folder was listed; mend or remove it, "
        "or train without such images: data.on_bad=skip"
    )
    assert stopping.read(2) == jpeg(100, 40, 50)  # another of that name is taken as it is
    cut = Cut(Span(8, 8), 1, seed=0)
    ((batch,),) = Batches(skipping, Augment(size=8), cut).steps(0, 1)
    bad = batch.indices[batch.labels == NO_IMAGE]
    assert sorted(bad.tolist()) == [1, 4, 5, 6, 7]
    told = capsys.readouterr().err
    assert told.count("is no longer there") == 5 and "skipped (5 so far)" in told


def test_a_rec_that_is_cut_off_while_it_is_trained_on_names_record_offset_and_file(tmp_path):
    images = [jpeg(number, 32 + number % 3) for number in range(40)]
    file = write_rec(tmp_path / "some.rec", images, [float(number % 4) for number in range(40)])
    split = Recordio(path=str(file), val=str(file), cache="none").open("train")
    batches = Batches(split, Augment(size=16), Cut(Span(40, 10), 2, seed=0), decoders=2).steps(0, 40)
    next(batches)
    os.truncate(file, 3000)
    with pytest.raises(SourceError, match=rf"{file}: record \d+ at byte \d+: the file was cut off since it was opened"):
        list(batches)


def test_memory_does_not_grow_with_the_images_seen(tmp_path):
    """20,000 records, 60 MB, each read once; what lies in the page cache is not the process's."""
    image = bytes(3_000)
    file = write_rec(tmp_path / "many.rec", [image] * 20_000, [0.0] * 20_000)
    records = Records(file)
    records.labels()
    for number in range(1000):
        records.image(number)
    before = resident_now()
    for number in np.random.default_rng(0).permutation(20_000).tolist():
        assert len(records.image(number)) == 3_000
    assert resident_now() - before < 8 * MIB


def resident_now() -> int:
    """Bytes of memory that are this process's alone."""
    pages, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (pages - shared) * os.sysconf("SC_PAGE_SIZE")


def test_a_hundred_thousand_classes(tmp_path):
    images = [jpeg(0)] * 4
    file = write_rec(tmp_path / "some.rec", images, [0.0, 99_999.0, 5.0, 99_998.0])
    split = Recordio(path=str(file), val=str(file)).open("train")
    assert len(split.classes) == 100_000 and split.labels.tolist() == [0, 99_999, 5, 99_998]
    for number in range(3000):  # making more of them is what takes long
        (tmp_path / f"train/{number:06}").mkdir(parents=True)
        (tmp_path / f"train/{number:06}/x.jpg").touch()
    split = Folder(path=str(tmp_path), cache="none").open("train")
    assert np.array_equal(split.labels, np.arange(3000)) and split.classes[2999] == "002999"
