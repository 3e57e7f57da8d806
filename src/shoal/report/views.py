"""Views: images as they are stored, as a training sees them from epoch to epoch, and as validation would."""

from __future__ import annotations

import numpy as np

from shoal.data.decode import Pictures
from shoal.data.order import order
from shoal.data.source import Encoded, Pixels, Source
from shoal.report.picture import Canvas

EPOCHS = 5


def views(source: Source, images: int, seed: int) -> bytes:
    """A PNG: a row for each of the first `images` that a training with this seed would take, in its order.

    UsageError: images that its augmentation does not fit. SourceError: images that cannot be read.
    """
    data = source.open("train")
    source.check(data)
    chosen = order(len(data.labels), seed, 0, source.shuffle)[:images]
    pictures = Pictures(data, source.augment)
    seen = [pictures.train(chosen, seed=seed, epoch=epoch)[0] for epoch in range(EPOCHS)]
    valid, _ = pictures.val(chosen)
    canvas = Canvas(EPOCHS + 2, len(chosen), lines=2)
    for row, index in enumerate(chosen):
        stored, label = _stored(data, int(index)), int(data.labels[index])
        name = data.classes[label] if label >= 0 else "no label"
        tall, wide = stored.shape[:2]
        canvas.put(0, row, stored, [name, f"stored: {wide} x {tall} px"])
        for column, batch in enumerate(seen):
            canvas.put(1 + column, row, batch[row].transpose(1, 2, 0), [f"epoch {1 + column}"])
        canvas.put(1 + EPOCHS, row, valid[row].transpose(1, 2, 0), ["if validated on"])
    return canvas.png()


def _stored(data: Pixels | Encoded, index: int) -> np.ndarray:
    """uint8 [H, W, C]; one pixel, where the image is skipped."""
    if hasattr(data, "pixels"):
        return data.pixels(np.array([index]))[0].transpose(1, 2, 0)  # type: ignore[union-attr]
    image = data.image(index)  # type: ignore[union-attr]
    return np.zeros((1, 1, 3), np.uint8) if image is None else image.permute(1, 2, 0).numpy()
