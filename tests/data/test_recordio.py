"""RecordIO: what is written is read, whatever the bytes; MXNet's files are read; every fault says in one line where."""

from __future__ import annotations

import os
import struct
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.augment import Augment
from shoal.data.decode import Pictures
from shoal.data.order import order
from shoal.data.readahead import Readahead
from shoal.data.recordio import MAGIC, Header, Records, Writer, opened, pack
from shoal.data.shuffle import Shuffle
from shoal.data.source import SourceError
from shoal.data.sources.recordio import Recordio
from small_images import jpeg, real, rec_pair, write_rec

WORD = struct.pack("<I", MAGIC)


def written(path: Path, records: list[bytes], *, index: bool = False) -> Path:
    with Writer(path) as writer:
        for record in records:
            writer.write(record)
    if not index:
        path.with_suffix(".idx").unlink()
    return path


def fault(path: Path) -> str:
    """The message about a file that cannot be opened, or whose records cannot be read: one line."""
    with pytest.raises(SourceError) as caught:
        records = Records(path)
        for number in range(len(records)):
            records.read(number)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Round trips

payloads = st.lists(st.one_of(st.binary(max_size=9), st.just(WORD), st.just(WORD[:3])), max_size=6).map(b"".join)


@given(records=st.lists(payloads, min_size=1, max_size=8), index=st.booleans())
def test_what_is_written_is_read(records, index):
    with tempfile.TemporaryDirectory() as folder:
        held = Records(written(Path(folder) / "some.rec", records, index=index))
        assert [held.read(number) for number in range(len(held))] == records
        assert np.array_equal(held._walked(), held.starts)


@given(
    labels=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=4).map(tuple),
    identity=st.sampled_from([0, 7, MAGIC, MAGIC << 32, 2**64 - 1]),
    image=payloads,
)
def test_headers_with_one_label_or_several_even_where_they_hold_the_magic_word(labels, identity, image):
    header = Header(labels, identity, MAGIC)
    with tempfile.TemporaryDirectory() as folder:
        held = Records(written(Path(folder) / "some.rec", [pack(Header((1.0,)), b"x"), pack(header, image)]))
        assert held.header(1) == header and held.image(1) == image
        assert held.labels(0).tolist() == [1.0, labels[0]]


def test_aligned_magic_words_are_taken_out_as_dmlc_does(tmp_path):
    path = written(tmp_path / "some.rec", [b"abcd" + WORD + b"ef"])
    parts = struct.pack("<II4s", MAGIC, 1 << 29 | 4, b"abcd") + struct.pack("<II4s", MAGIC, 3 << 29 | 2, b"ef")
    assert path.read_bytes() == parts
    assert Records(path).read(0) == b"abcd" + WORD + b"ef"


def test_a_writer_that_leaves_magic_words_in_is_understood_all_the_same(tmp_path):
    record = b"abcd" + WORD + struct.pack("<I", 4) + b"efgh"
    (tmp_path / "some.rec").write_bytes((struct.pack("<II", MAGIC, len(record)) + record) * 2)
    held = Records(tmp_path / "some.rec")
    assert [held.read(0), held.read(1)] == [record, record]


def test_label_columns(tmp_path):
    labels = [(1.0, 5.0, 7.0), (2.0, 6.0, 8.0)]
    held = Records(write_rec(tmp_path / "some.rec", [jpeg(0), jpeg(1)], labels))
    assert [held.labels(column).tolist() for column in range(3)] == [[1, 2], [5, 6], [7, 8]]
    with pytest.raises(SourceError, match=r"record 0 at byte 0: has 3 labels; data.label: 3 asks for number 4"):
        held.labels(3)


def test_an_index_may_name_some_of_the_records_in_any_order(tmp_path):
    path = written(tmp_path / "some.rec", [b"a", b"b", b"c"], index=True)
    lines = path.with_suffix(".idx").read_text().splitlines()
    path.with_suffix(".idx").write_text(f"{lines[2]}\n{lines[0]}\n")
    held = Records(path)
    assert [held.read(0), held.read(1)] == [b"a", b"c"]  # the order is the file's, with and without an .idx


def test_opened_again_only_when_it_has_changed(tmp_path):
    path = written(tmp_path / "some.rec", [b"a"])
    first = opened(path)
    assert opened(path) is first
    path.unlink()
    written(path, [b"a", b"b"])
    assert len(opened(path)) == 2


# Faults


@pytest.fixture
def good(tmp_path) -> Path:
    return written(tmp_path / "some.rec", [b"a" * 10, b"b" * 20, b"cccc" + WORD + b"d" * 32 + WORD * 2 + b"e"])


def test_truncated(good):
    whole, starts = good.read_bytes(), Records(good).starts.tolist()
    assert starts == [0, 20, 48]
    for size in range(1, len(whole)):
        good.write_bytes(whole[:size])
        if size in (18, 19, *starts, len(whole) - 1, len(whole) - 2, len(whole) - 3):
            continue  # between records, or only zeros are missing
        told, record = fault(good), sum(start < size for start in starts) - 1
        assert told.startswith(f"{good}: record {record} at byte {starts[record]}"), (size, told)
        assert f"the file is cut off at byte {size}" in told and "copy it again" in told


def test_misaligned(good):
    whole = good.read_bytes()
    good.write_bytes(whole[:20] + b"x" + whole[20:])
    assert fault(good).startswith(f"{good}: record 1 at byte 20: 0x")
    good.write_bytes(b"x" + whole)
    assert f"{good}: record 0 at byte 0: 0x" in fault(good) and "no RecordIO file" in fault(good)


@given(data=st.binary(min_size=1, max_size=200))
@settings(max_examples=60)
def test_random_bytes(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "some.rec"
        path.write_bytes(data)
        assert fault(path).startswith(f"{path}: record 0 at byte 0: ")


@given(at=st.integers(0, 121), bit=st.integers(0, 7))
def test_a_flipped_bit_is_told_or_changes_only_a_payload(at, bit):
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder) / "some.rec", [b"a" * 10, b"b" * 20, b"c" * 60])
        data = bytearray(path.read_bytes())
        data[at % len(data)] ^= 1 << bit
        path.write_bytes(data)
        try:
            records = Records(path)
            assert 1 <= len(records) <= 3
            assert all(records.read(number) is not None for number in range(len(records)))
        except SourceError as error:
            assert f"{path}: record " in str(error) and " at byte " in str(error)


def test_a_record_of_several_parts_cut_in_the_middle(good):
    whole = good.read_bytes()
    third = whole[48:]
    good.write_bytes(whole[:48] + third[:12])  # its first part alone
    assert fault(good) == (
        f"{good}: record 2 at byte 48: the file is cut off at byte 60: its part 1 is missing; copy it again"
    )
    good.write_bytes(whole[:48] + third[:12] + whole[:20])  # and another record behind it
    assert "record 2 at byte 48, part 1 at byte 60: marked 0 where a further part (2 or 3) should begin" in fault(good)
    good.write_bytes(whole[:48] + third[12:])  # its first part is missing
    assert "record 2 at byte 48: marked 2 where a whole record (0) or a first part (1) should begin" in fault(good)


def test_missing_and_empty(tmp_path):
    assert fault(tmp_path / "no.rec") == f"{tmp_path / 'no.rec'}: cannot be read (No such file or directory)"
    (tmp_path / "some.rec").touch()
    assert fault(tmp_path / "some.rec") == f"{tmp_path / 'some.rec'}: is empty; a RecordIO file begins with 0xced7230a"


@pytest.mark.parametrize(
    ("index", "told"),
    [
        ("0\t0\n1\t24\n", ".idx:2: byte 24 of some.rec begins no record; remove the .idx"),
        ("0\t0\n1\t21\n", ".idx:2: byte 21 of some.rec begins no record"),
        ("0\t0\n1\t100000\n", ".idx:2: byte 100000 of some.rec begins no record"),
        ("0\t0\n1\t-4\n", ".idx:2: byte -4 of some.rec begins no record"),
        ("0\t0\n1\t0\n", ".idx:2: byte 0 of some.rec was named before"),
        ("0\t60\n", ".idx:1: byte 60 of some.rec begins no record"),
        ("0\n", ".idx:1: expected `key TAB byte`, got '0'"),
        ("0\t0\tx\n", ".idx:1: expected `key TAB byte`"),
        ("0\tzero\n", ".idx:1: expected `key TAB byte`, got '0\\tzero'"),
        ("0\t99999999999999999999\n", ".idx:1: expected `key TAB byte`"),
        ("", ".idx: names no record"),
    ],
)
def test_a_wrong_index(good, index, told):
    good.with_suffix(".idx").write_text(index)
    assert told in fault(good)


def test_a_right_index_of_a_truncated_file(good):
    whole = good.read_bytes()
    good.with_suffix(".idx").write_text("0\t0\n1\t20\n")
    good.write_bytes(whole[:40])
    assert "record 1 at byte 20: the file is cut off at byte 40: 20 bytes announced, 12 left" in fault(good)


def test_records_that_hold_no_image_header(tmp_path):
    short = Records(written(tmp_path / "short.rec", [b"abc"]))
    with pytest.raises(SourceError, match="record 0 at byte 0: 3 bytes, fewer than the 24 of an image record's header"):
        short.labels()
    many = Records(written(tmp_path / "many.rec", [struct.pack("<IfQQ", 1000, 0, 0, 0) + bytes(30)]))
    with pytest.raises(SourceError, match="record 0 at byte 0: 1000 labels announced, which do not fit 54 bytes"):
        many.labels()


# The real files


@pytest.mark.parametrize(("name", "count"), [("cifar10_train", 50_000), ("cifar10_val", 10_000)])
def test_files_of_mxnets_own_im2rec(name, count, tmp_path):
    indexed = Records(real(f"{name}.rec"))
    labels = indexed.labels()
    assert len(indexed) == count and np.bincount(labels.astype(int)).tolist() == [count // 10] * 10
    keys = dict(line.split(b"\t")[::-1] for line in real(f"{name}.idx").read_bytes().splitlines())
    for number in (0, 1, 2, count - 1):
        header = indexed.header(number)
        assert header.labels == (labels[number],) and header.id == int(keys[b"%d" % indexed.starts[number]])
        assert indexed.image(number)[:3] == b"\xff\xd8\xff"
    alone = tmp_path / "alone.rec"
    alone.symlink_to(real(f"{name}.rec"))  # without its .idx
    assert np.array_equal(Records(alone).starts, indexed.starts)


def test_the_scan_takes_no_longer_than_three_readings(tmp_path):
    path = tmp_path / "alone.rec"
    path.symlink_to(real("cifar10_train.rec"))
    ratios = []
    for _ in range(5):
        began = time.perf_counter()
        path.read_bytes()
        read = time.perf_counter()
        Records(path)
        ratios.append((time.perf_counter() - read) / (read - began))
    assert sorted(ratios)[2] < 3


# Files that change while they are read


@pytest.mark.parametrize("index", [True, False])
def test_a_file_that_is_cut_off_while_it_is_read_is_an_error_and_no_crash(index, tmp_path):
    image, magic = bytes(3000), b"abcd" + WORD + bytes(3000)
    records = Records(written(tmp_path / "some.rec", [pack(Header((1.0,)), image)] * 4 + [magic], index=index))
    where = f"{tmp_path / 'some.rec'}: record 3 at byte {records.starts[3]}"
    os.truncate(records.path, int(records.starts[3]) + 100)
    assert records.image(2) == image
    for read in (records.read, records.image, records.header):
        with pytest.raises(SourceError) as caught:
            read(3)
        length = 24 + 8 + 3000
        assert str(caught.value) == (
            f"{where}: the file was cut off since it was opened, of {length} bytes 100 are left; copy it again"
        )
    with pytest.raises(SourceError, match=r"record 4 at byte \d+: the file was cut off since"):
        records.read(4)


def test_a_file_that_is_written_into_while_it_is_read_names_the_record(tmp_path):
    records = Records(written(tmp_path / "some.rec", [pack(Header((1.0,)), bytes(30))] * 3 + [WORD + b"ab" + WORD * 2]))
    with open(records.path, "r+b") as file:
        file.seek(int(records.starts[1]))
        file.write(b"other words")
        file.seek(int(records.starts[3]) + 8)
        file.write(b"other")
    assert records.image(0) == records.image(2) == bytes(30)
    with pytest.raises(SourceError) as caught:
        records.image(1)
    assert str(caught.value) == (
        f"{records.path}: record 1 at byte {records.starts[1]}: begins with {b'other wo'.hex(' ')}; "
        "the file was written into since it was opened; start again when it is whole"
    )
    with pytest.raises(SourceError, match=r"record 3 at byte \d+, part 1 at byte \d+"):
        records.read(3)


def test_a_file_that_is_replaced_by_another_while_it_is_read_stays_what_was_opened(tmp_path):
    path = written(tmp_path / "some.rec", [b"one", b"two"])
    records = opened(path)
    os.replace(written(tmp_path / "other.rec", [b"others"]), path)
    assert [records.read(0), records.read(1)] == [b"one", b"two"]
    assert opened(path).read(0) == b"others"


def test_blocks_are_fetched_once_until_they_are_long_ago(tmp_path, monkeypatch):
    records = Records(write_rec(tmp_path / "some.rec", [jpeg(number) for number in range(11)], [0.0] * 11))
    fetched: list[tuple[int, int]] = []
    fetch = records.fetch
    monkeypatch.setattr(records, "fetch", lambda *span: (fetched.append(span), fetch(*span)))
    ahead = Readahead(records, Shuffle(block=2, blocks=2))
    for number in (10, 1, 0, 4, 5, 3, 2, 7, 9, 0, 10):
        assert ahead.image(number) == records.image(number)
    assert fetched == [(10, 12), (0, 2), (4, 6), (2, 4), (6, 8), (8, 10), (0, 2), (10, 12)]


def test_a_training_in_blocks_has_each_fetched_once(tmp_path, monkeypatch):
    rec_pair(tmp_path)
    fetched, shuffle, augment = [], Shuffle(block=20, blocks=2), Augment(size=8)
    monkeypatch.setattr(Records, "fetch", lambda self, low, high: fetched.append((low, high)))
    source = Recordio(path=str(tmp_path), cache="none", shuffle=shuffle, augment=augment)
    train, val = source.open("train"), source.open("val")
    Pictures(val, augment).val(np.arange(30))
    assert not fetched
    Pictures(train, augment, 2).train(order(60, 0, 0, shuffle), seed=0, epoch=0)
    assert sorted(fetched) == [(0, 20), (20, 40), (40, 60)]
