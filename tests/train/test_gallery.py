"""The gallery: pictures as the model sees them, small enough for a page."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.data.augment import Augment
from shoal.data.source import Held
from shoal.data.sources.synthetic import Synthetic
from shoal.report.predictions import Predictions
from shoal.train.gallery import EXAMPLES, SIDE, Gallery


def gallery(side: int, channels: int = 3, images: int = 30, augment: Augment | None = None) -> tuple[Held, Gallery]:
    source = Synthetic(images=4 * images, channels=channels, size=side, augment=augment or Augment())
    data = source.open("val")
    return data, Gallery(data, source)


@pytest.mark.parametrize("channels", [1, 3])
def test_small_images_are_kept_as_they_are(channels: int):
    data, held = gallery(8, channels)
    chosen = np.array([2, 17])
    assert np.array_equal(held.pictures(chosen), data.images[chosen].transpose(0, 2, 3, 1))


def test_large_ones_are_made_small_and_cut_as_for_the_model():
    data, held = gallery(4 * SIDE, images=2)
    data.images[:] = 77
    small = held.pictures(np.array([1]))
    assert small.shape == (1, SIDE, SIDE, 3) and (small == 77).all()
    _, held = gallery(64, images=2, augment=Augment(size=48))
    assert held.pictures(np.array([0])).shape == (1, 48, 48, 3)


def test_examples_are_always_the_same_from_all_over_the_split():
    data, held = gallery(8, images=100)
    assert len(held.examples) == EXAMPLES and held.examples[0] == 0 and held.examples[-1] == 99
    n = len(data.labels)
    told = Predictions(
        data.classes, data.labels.astype(np.int32), np.zeros((n, 1), np.int32), np.ones((n, 1), np.float32),
        np.ones(n, np.float32),
    )  # fmt: skip
    assert np.array_equal(held.with_examples(told).shown, held.examples)
    kept = held.with_pictures(told)
    assert np.array_equal(kept.shown, told.worth_a_look()) and len(kept.pictures) == len(kept.shown)
    assert len(gallery(8, images=3)[1].examples) == 3
