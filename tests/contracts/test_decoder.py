"""What every decoder must do: give torchvision's pixels (on a GPU nearly), and refuse the same, in the same words."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from a_part import assert_torch_free, minimal, parts
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shoal.base.errors import UsageError
from shoal.data.decoders.auto import Auto
from shoal.data.decoders.nvjpeg import Nvjpeg
from shoal.data.decoders.simplejpeg import Simplejpeg
from shoal.data.decoders.torchvision import Torchvision
from shoal.data.image import ImageError, decode
from small_images import encoded, jpeg, picture

PLAIN = Image.fromarray(picture(3, 37, 51))
JPEGS = {
    **{f"subsampling {number}": encoded(PLAIN, "JPEG", subsampling=number, quality=75) for number in range(3)},
    "progressive": encoded(PLAIN, "JPEG", progressive=True),
    "optimized": encoded(PLAIN, "JPEG", optimize=True, quality=30),
    "grey": encoded(PLAIN.convert("L"), "JPEG"),
    "cmyk": encoded(PLAIN.convert("CMYK"), "JPEG"),
    "rgb": encoded(PLAIN, "JPEG", keep_rgb=True),
    "turned": encoded(PLAIN, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"),
    "restarts": encoded(PLAIN, "JPEG", restart_marker_blocks=2),
    "one pixel": encoded(PLAIN.crop((0, 0, 1, 1)), "JPEG"),
    "thin": encoded(PLAIN.crop((0, 0, 1, 37)), "JPEG", subsampling=2),
    "bytes after the end": jpeg(1) + b"more",
}


@pytest.fixture(params=parts("decoders"))
def decoder(request):
    one = minimal("decoders", request.param)
    if missing := one.fits():
        pytest.skip(f"{request.param}: {missing}")
    return one


def outcome(data: bytes, decoder) -> str | torch.Tensor:
    try:
        return decode(data, decoder.ready())
    except ImageError as error:
        return str(error)


def same(one: str | torch.Tensor, other: str | torch.Tensor, exact: bool) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and one == other
    return torch.equal(one, other) if exact else one.shape == other.shape


def test_its_file_is_torch_free(decoder):
    assert_torch_free("decoders", decoder.name)


@pytest.mark.parametrize("kind", JPEGS)
def test_pixels_are_torchvisions(decoder, kind):
    pixels = decode(JPEGS[kind], decoder.ready())
    assert pixels.dtype == torch.uint8 and pixels.shape[0] == 3
    wanted = decode(JPEGS[kind], Torchvision().ready())
    assert torch.equal(pixels, wanted) if decoder.EXACT else (pixels.float() - wanted.float()).abs().mean() < 4


def test_damaged_images_are_taken_or_refused_alike(decoder):
    @given(kind=st.sampled_from(sorted(JPEGS)), at=st.floats(0, 1), value=st.integers(0, 255), cut=st.booleans())
    @settings(max_examples=300)
    def alike(kind, at, value, cut):
        data = JPEGS[kind]
        place = round(at * (len(data) - 1))
        data = data[:place] if cut else data[:place] + bytes([value]) + data[place + 1 :]
        assert same(outcome(data, decoder), outcome(data, Torchvision()), decoder.EXACT)

    alike()


def test_threads_get_the_same_pixels(decoder):
    images, ready = [jpeg(number, 40, 50) for number in range(40)], decoder.ready()
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(ready, images))
    assert all(torch.equal(pixels, ready(image)) for pixels, image in zip(made, images, strict=True))


def test_a_memory_map_is_read_where_it_lies(decoder):
    held = np.frombuffer(jpeg(2), np.uint8)
    assert torch.equal(decode(memoryview(held), decoder.ready()), decode(jpeg(2), decoder.ready()))


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError, match=r"^data\.decoder: nvjpeg: needs an NVIDIA GPU"):
        Nvjpeg().ready()


def test_what_a_gpu_cannot_decode_is_left_to_the_cores(monkeypatch):
    """nvJPEG itself needs a GPU; here it is played."""

    def played(images, mode, device):
        if len(images[0]) < 400:
            raise RuntimeError("nvjpegDecode failed: 5")
        return [torch.zeros(3, 2, 2, dtype=torch.uint8)]

    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.ops.image.decode_jpegs_cuda", SimpleNamespace(default=played))
    ready = Nvjpeg().jpeg()
    small = jpeg(1, 4)[:399]
    assert decode(jpeg(2, 64), ready).shape == (3, 2, 2)
    with pytest.raises(ImageError) as caught:
        decode(small, ready)
    assert str(caught.value) == outcome(small, Torchvision())


def test_auto_says_why(monkeypatch):
    assert "the fastest that is installed" in Auto().why() or "would be faster" in Auto().why()
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    monkeypatch.setattr("shoal.data.decoders.simplejpeg.find_spec", lambda name: None)
    assert Auto().why() == (
        "JPEG decoder: torchvision (simplejpeg would be faster, but is not installed here: pip install simplejpeg; "
        "the pixels are the same)"
    )
    with pytest.raises(UsageError, match=r"data\.decoder: simplejpeg: not installed here"):
        Simplejpeg().ready()
