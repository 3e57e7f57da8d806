"""Gallery: validation images as small pictures, for people to look at."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from shoal.data.decode import Pictures
from shoal.data.source import Encoded, Pixels
from shoal.report.predictions import Predictions

SIDE = 96
"""Longest side of a picture, pixels."""
EXAMPLES = 16
"""Images that are shown at every validation."""


class Gallery:
    """Pictures of one split, as the model sees them."""

    def __init__(self, data: Pixels | Encoded, source: Any) -> None:
        """source: the part of the recipe that says how images are cut and decoded."""
        self._data, self._source = data, source
        self.examples = np.unique(np.linspace(0, len(data.labels) - 1, EXAMPLES).astype(np.int64))
        """int64, rising: always the same images, from all over the split."""
        self._held: np.ndarray | None = None

    def pictures(self, chosen: np.ndarray) -> np.ndarray:
        """uint8 [m, h, w, channels] of the images at `chosen`, int64 [m]."""
        images, _ = Pictures(self._data, self._source.augment, self._source.threads).val(chosen)
        height, width = images.shape[2:]
        if (longest := max(height, width)) > SIDE:
            size = max(1, round(height * SIDE / longest)), max(1, round(width * SIDE / longest))
            small = interpolate(torch.from_numpy(images).float(), size, mode="bilinear", antialias=True)
            images = small.round().clamp(0, 255).to(torch.uint8).numpy()
        return np.ascontiguousarray(images.transpose(0, 2, 3, 1))

    def with_pictures(self, predictions: Predictions) -> Predictions:
        """The predictions with the pictures that are worth a look."""
        chosen = predictions.worth_a_look()
        return predictions.with_pictures(chosen, self.pictures(chosen)) if len(chosen) else predictions

    def with_examples(self, predictions: Predictions) -> Predictions:
        """The predictions with the pictures that are shown every time."""
        if self._held is None:
            self._held = self.pictures(self.examples)
        return predictions.with_pictures(self.examples, self._held)
