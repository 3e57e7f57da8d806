"""Pictures: arrays of pixels as files that browsers and TensorBoard show."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

    from shoal.report.predictions import Predictions

SMALL = 40
"""Pictures up to this side are kept without loss: there is little to save."""
_CELL, _LINE, _COLUMNS = 112, 13, 4
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
    from PIL import Image, ImageDraw, ImageFont

    count = len(predictions.shown)
    columns, rows = min(_COLUMNS, count), -(-count // _COLUMNS)
    width, height = columns * _CELL, rows * (_CELL + 2 * _LINE)
    canvas = Image.new("RGB", (width, height), _BACK)
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(11)
    for place, (index, pixels) in enumerate(zip(predictions.shown, predictions.pictures, strict=True)):
        x, y = place % _COLUMNS * _CELL, place // _COLUMNS * (_CELL + 2 * _LINE)
        image = image_of(pixels)
        room = _CELL - 8
        scale = room / max(image.size)
        size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        way = Image.Resampling.NEAREST if scale >= 1.5 else Image.Resampling.BILINEAR
        canvas.paste(image.resize(size, way), (x + (_CELL - size[0]) // 2, y + 4 + (room - size[1]) // 2))
        guess, label = int(predictions.guesses[index, 0]), int(predictions.labels[index])
        lines = [f"{predictions.probabilities[index, 0]:.0%} {predictions.name(guess)}"]
        if label >= 0 and guess != label:
            lines.append(f"is {predictions.name(label)}")
        for number, line in enumerate(lines):
            while len(line) > 4 and draw.textlength(line, font) > room:
                line = line[:-2].rstrip() + "…"
            draw.text((x + 4, y + _CELL + number * _LINE - 2), line, _WRONG if len(lines) > 1 else _INK, font)
    held = io.BytesIO()
    canvas.save(held, "PNG", compress_level=3)
    return held.getvalue(), width, height
