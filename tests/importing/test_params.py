"""MXNet's .params: all forms are read, and whatever else lies in a file ends in one clear error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from old_weights import written

from shoal.base.errors import ShoalError
from shoal.importing import params

ARRAYS = {
    "arg:conv0_weight": np.arange(24, dtype="<f4").reshape(2, 3, 2, 2),
    "aux:bn_moving_mean": np.linspace(0, 1, 3).astype("<f8"),
    "arg:halves": np.arange(4, dtype="<f2"),
    "arg:bytes": np.arange(5, dtype="u1"),
    "arg:longs": np.arange(2, dtype="<i8"),
}


@pytest.mark.parametrize("version", [None, params.V1, params.V2, params.V3])
def test_every_form_that_mxnet_wrote(tmp_path: Path, version: int | None):
    file = tmp_path / "a.params"
    file.write_bytes(written(ARRAYS, version))
    found = params.read(file)
    assert list(found) == ["conv0_weight", "bn_moving_mean", "halves", "bytes", "longs"]
    for old, array in zip(ARRAYS.values(), found.values(), strict=True):
        assert array.dtype == old.dtype and np.array_equal(array, old)


def test_a_file_cut_off_anywhere_says_so(tmp_path: Path):
    whole, file = written({"w": np.ones((2, 3), "<f4")}), tmp_path / "a.params"
    for end in range(len(whole)):
        file.write_bytes(whole[:end])
        with pytest.raises(ShoalError, match="cut off"):
            params.read(file)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (written({"w": np.ones(2, "<f4")}) + b"more", "4 bytes too many"),
        (b"\x80\x04\x95" + bytes(40), "a pickle, which is never opened"),
        (b"PK\x03\x04" + bytes(40), "a zip file"),
        (bytes(40), "begins with 0x0"),
        (written({"w": np.ones(2, "<f4")}).replace(b"\xc9\xfa\x93\xf9\x00", b"\xc9\xfa\x93\xf9\x01"), "is sparse"),
        (written({"arg:w": np.ones(2, "<f4"), "aux:w": np.ones(2, "<f4")}), "w is in it twice"),
    ],
)
def test_what_is_no_sound_file(tmp_path: Path, data: bytes, told: str):
    (tmp_path / "a.params").write_bytes(data)
    with pytest.raises(ShoalError) as error:
        params.read(tmp_path / "a.params")
    assert told in str(error.value) and "\n" not in str(error.value)


@settings(max_examples=300)
@given(st.data())
def test_garbage_never_does_otherwise(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    whole = bytearray(written(ARRAYS, data.draw(st.sampled_from([None, params.V1, params.V2]))))
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4)):
        whole[place] = data.draw(st.integers(0, 255))
    garbage = bytes(whole) + data.draw(st.binary(max_size=8)) if data.draw(st.booleans()) else data.draw(st.binary())
    file = tmp_path_factory.getbasetemp() / "garbage.params"
    file.write_bytes(garbage)
    try:
        params.read(file)
    except ShoalError as error:
        assert str(error).startswith(str(file))
