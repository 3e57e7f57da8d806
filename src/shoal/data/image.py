"""One encoded image as pixels in RGB, or the reason why it is no image to train on."""

from __future__ import annotations

import io
import struct
from functools import cache
from typing import TYPE_CHECKING, Any

from shoal.base.errors import ShoalError, first_line

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from shoal.data.decoder import Jpeg

MOST_PIXELS = 89_478_485
"""Larger images are refused, as Pillow does: a damaged header can claim any size, and a few such images decoded at once
fill the memory."""


_SEGMENT = struct.Struct(">BBHBHHB")  # of a JPEG: 0xFF, marker, length; of a frame also bits, height, width, colours
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_COLOURS = {1: "grey", 4: "CMYK"}
_MODES = {
    "RGB": "colour",
    "L": "grey",
    "P": "palette",
    "RGBA": "colour with transparency",
    "LA": "grey with transparency",
}

Bytes = bytes | memoryview
"""An encoded image; a view where it lies in a memory map already."""


class ImageError(ShoalError):
    """Bytes that are no image to train on; says why. Who holds the bytes adds where they came from."""


def decode(data: Bytes, jpeg: Jpeg | None = None) -> torch.Tensor:
    """uint8 [3, H, W] of a JPEG, PNG, GIF, WebP, BMP, TIFF … image; jpeg: decodes those.

    Grey becomes three equal channels, CMYK and palettes their colours, 16 bits their upper 8; transparency is dropped.
    ImageError: what cannot be read whole, is animated, is gigantic, or has numbers that are no colours.
    """
    if not data:
        raise ImageError("is empty (0 bytes)")
    if data[:3] != b"\xff\xd8\xff":
        return _other(data)
    _check_size(*jpeg_frame(data)[:2])
    if jpeg is None:
        from shoal.data.decoder import usual

        jpeg = usual()
    return jpeg(data)


def resized(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """uint8 [C, H, W] -> uint8 [C, height, width]; bilinear, over all pixels that fall together (antialiased)."""
    if image.shape[1:] == (height, width):
        return image
    from torch.nn.functional import interpolate

    return interpolate(image[None], (height, width), mode="bilinear", antialias=True)[0]


def linearly(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """As `resized`, but each pixel of the nearest four alone: faster, and not antialiased where it shrinks."""
    from torch import from_numpy

    cv2 = _opencv()
    pixels = cv2.resize(image.permute(1, 2, 0).numpy(), (width, height), interpolation=cv2.INTER_LINEAR)
    return from_numpy(pixels.reshape(height, width, -1)).permute(2, 0, 1)


@cache
def _opencv() -> Any:
    import cv2

    cv2.setNumThreads(1)  # images are shared out among threads already
    return cv2


def covering(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """uint8 [C, height, width]: the middle of the image, after it was resized to just cover that size."""
    tall, wide = image.shape[1:]
    if (tall, wide) == (height, width):
        return image
    factor = max(height / tall, width / wide)
    image = resized(image, max(height, round(tall * factor)), max(width, round(wide * factor)))
    top, left = ((image.shape[1] - height) // 2, (image.shape[2] - width) // 2)
    return image[:, top : top + height, left : left + width]


def centred(image: torch.Tensor, shorter: int, side: int) -> torch.Tensor:
    """uint8 [C, side, side]: the middle of the image, after its shorter side was made `shorter` pixels."""
    height, width = image.shape[1:]
    if height == width == shorter == side:
        return image
    short = min(height, width)
    image = resized(image, shorter * height // short, shorter * width // short)
    top, left = (round((length - side) / 2) for length in image.shape[1:])
    return image[:, top : top + side, left : left + side]


def form_of(data: Bytes) -> str:
    """`JPEG, colour`, `PNG, palette` …: of an image that can be decoded."""
    if data[:3] == b"\xff\xd8\xff":
        return f"JPEG, {_COLOURS.get(jpeg_frame(data)[2], 'colour')}"
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return f"{image.format}, {_MODES.get(image.mode, image.mode)}"


def jpeg_frame(data: Bytes) -> tuple[int, int, int]:
    """Height, width and number of colours in a JPEG's frame header, before memory is taken for it; 0, 0, 0: none."""
    at, last = 2, len(data) - _SEGMENT.size
    while at <= last:
        start, marker, length, _, height, width, colours = _SEGMENT.unpack_from(data, at)
        if start != 0xFF:
            break
        if marker in _FRAMES:
            return height, width, colours
        at += 1 if marker == 0xFF else 2 + length
    return 0, 0, 0


def _other(data: Bytes) -> torch.Tensor:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            return from_pillow(image)
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(f"is no image in a known format (begins with {data[:8].hex(' ')})") from None
    except Image.DecompressionBombError:
        raise ImageError(f"has more than {MOST_PIXELS:,} pixels; scale it down") from None
    except Exception as error:  # Pillow's readers raise what comes: OSError, SyntaxError, struct.error, ValueError …
        raise _undecodable(error) from None


def from_pillow(image: Image.Image) -> torch.Tensor:
    """uint8 [3, H, W] of a Pillow image in any mode; as `decode`."""
    import numpy as np
    import torch
    from PIL import Image

    _check_size(image.height, image.width)
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise ImageError(f"has {frames} frames; a still image is needed")
    if image.mode in ("I", "F"):
        raise ImageError(f"holds 32-bit numbers (Pillow's mode {image.mode}), which are no colours")
    try:
        if image.mode.startswith("I;16"):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    except Exception as error:
        raise _undecodable(error) from None


def _undecodable(error: Exception) -> ImageError:
    return ImageError(f"cannot be decoded ({reason(error)})")


def _check_size(height: int, width: int) -> None:
    if height * width > MOST_PIXELS:
        raise ImageError(f"has {width} x {height} px, more than {MOST_PIXELS:,} in all; scale it down")


def reason(error: Exception) -> str:
    """The first line of a decoder's message, without the place in its source where it was raised."""
    line = first_line(error)
    return line.rpartition(".cpp:")[2].partition(", ")[2] or line
