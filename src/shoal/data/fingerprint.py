"""Fingerprint: which images these are, wherever they lie."""

from __future__ import annotations

import hashlib
from typing import cast

import numpy as np

from shoal.base.beats import beat
from shoal.data.image import Bytes, ImageError
from shoal.data.source import Encoded, Pixels

SAMPLE = 1000
"""Encoded images that are looked at, evenly spread."""


def fingerprint(images: Pixels | Encoded) -> str:
    """SHA-256, in hex, of number, labels, order and content: every pixel of images in memory; of encoded ones, of which
    there may be many, the files of SAMPLE, or why one cannot be read, wherever they are kept. Paths are not in it."""
    images = getattr(images, "origin", None) or images
    count = len(images.labels)
    digest = hashlib.sha256(repr((count, tuple(images.shape), tuple(images.classes))).encode())
    digest.update(images.labels.astype("<i8").tobytes())
    if hasattr(images, "pixels"):
        held = cast(Pixels, images)
        for low in range(0, count, SAMPLE):
            digest.update(held.pixels(np.arange(low, min(low + SAMPLE, count))).tobytes())
    else:
        files = cast(Encoded, images)
        for index in np.unique(np.linspace(0, count - 1, min(SAMPLE, count)).astype(np.int64)):
            beat()
            data = _read(files, int(index))
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
    return digest.hexdigest()


def _read(files: Encoded, index: int) -> Bytes:
    try:
        return files.read(index)
    except ImageError as error:
        return str(error).encode()
