"""Pictures: arrays of pixels as files that browsers and TensorBoard show."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

    from shoal.report.predictions import Predictions

SMALL = 40
"""Pictures up to this side are kept without loss: there is little to save."""
CELL, _LINE, _COLUMNS = 112, 13, 4
_BACK, _INK, _WRONG = (255, 255, 255), (20, 20, 20), (176, 0, 32)


def image_of(pixels: np.ndarray) -> Image.Image:
    """pixels uint8 [h, w, channels]; anything but one channel is shown by its first three (or one) as RGB."""
    from PIL import Image

    plain = pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, 0]
    return Image.fromarray(np.ascontiguousarray(plain)).convert("RGB")


def data_uri(pixels: np.ndarray) -> str:
    """A picture for a page; uint8 [h, w, channels]."""
    held, image = io.BytesIO(), image_of(pixels)
    if max(image.size) <= SMALL:
        image.save(held, "PNG")
        return as_uri(held.getvalue(), "png")
    image.save(held, "JPEG", quality=82)
    return as_uri(held.getvalue(), "jpeg")


def as_uri(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def sheet(predictions: Predictions) -> tuple[bytes, int, int]:
    """All pictures of some predictions in rows, each with what it was taken for: PNG, width, height."""
    count = len(predictions.shown)
    columns, rows = min(_COLUMNS, count), -(-count // _COLUMNS)
    canvas = Canvas(columns, rows, lines=2)
    for place, (index, pixels) in enumerate(zip(predictions.shown, predictions.pictures, strict=True)):
        guess, label = int(predictions.guesses[index, 0]), int(predictions.labels[index])
        lines = [f"{predictions.probabilities[index, 0]:.0%} {predictions.name(guess)}"]
        if label >= 0 and guess != label:
            lines.append(f"is {predictions.name(label)}")
        canvas.put(place % _COLUMNS, place // _COLUMNS, pixels, lines, _WRONG if len(lines) > 1 else _INK)
    return canvas.png(), *canvas.size


class Canvas:
    """Pictures in rows and columns, each with some lines of text below."""

    def __init__(self, columns: int, rows: int, *, lines: int) -> None:
        from PIL import Image, ImageDraw, ImageFont

        self._tall = CELL + lines * _LINE
        self.size = columns * CELL, rows * self._tall
        self._image = Image.new("RGB", self.size, _BACK)
        self._draw, self._font = ImageDraw.Draw(self._image), ImageFont.load_default(11)

    def put(
        self, column: int, row: int, pixels: np.ndarray, lines: Sequence[str], ink: tuple[int, int, int] = _INK
    ) -> None:
        """pixels uint8 [h, w, channels], made as large as the cell; lines are cut to its width."""
        from PIL import Image

        x, y = column * CELL, row * self._tall
        image, room = image_of(pixels), CELL - 8
        scale = room / max(image.size)
        size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        way = Image.Resampling.NEAREST if scale >= 1.5 else Image.Resampling.BILINEAR
        self._image.paste(image.resize(size, way), (x + (CELL - size[0]) // 2, y + 4 + (room - size[1]) // 2))
        for number, line in enumerate(lines):
            while len(line) > 4 and self._draw.textlength(line, self._font) > room:
                line = line[:-2].rstrip() + "…"
            self._draw.text((x + 4, y + CELL + number * _LINE - 2), line, ink, self._font)

    def png(self) -> bytes:
        held = io.BytesIO()
        self._image.save(held, "PNG", compress_level=3)
        return held.getvalue()
