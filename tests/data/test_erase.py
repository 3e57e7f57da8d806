"""Rectangles painted over: where, how often, with what."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.data.augment.draws import Draws
from shoal.data.augment.erase import Cutout, Erase

MEAN, STD = (100.4, 50.0, 200.0), (10.0, 20.0, 30.0)
MANY = Draws(np.arange(4000), 0, 0)


def test_boxes_are_of_the_area_and_shape_asked():
    boxes = Erase(probability=0.4).boxes(MANY, 64, 48)
    erased = boxes[:, 2] > 0
    assert abs(erased.mean() - 0.4) < 0.03
    top, left, tall, wide = boxes[erased].T
    assert top.min() == 0 and left.min() == 0 and (top + tall).max() == 64 and (left + wide).max() == 48
    assert (tall * wide / 64 / 48).min() > 0.018 and (tall * wide / 64 / 48).max() < 0.35
    assert (tall / wide).min() > 0.24 and (tall / wide).max() < 4
    assert abs(np.log(tall / wide).mean()) < 0.05


def test_what_never_fits_is_left_alone():
    assert not Erase(probability=1, area=(0.9, 0.95), ratio=(3.0, 3.3)).boxes(MANY, 32, 32)[:, 2:].any()


@pytest.mark.parametrize("paint", ["mean", "colour", "noise"])
def test_paint(paint):
    erase = Erase(probability=1, paint=paint, area=(0.2, 0.5))
    images = erase.apply(np.zeros((50, 3, 20, 20), np.uint8), MANY.of(slice(50)), MEAN, STD)
    boxes = erase.boxes(MANY.of(slice(50)), 20, 20)
    inside = [
        image[:, top : top + tall, left : left + wide]
        for image, (top, left, tall, wide) in zip(images, boxes, strict=True)
    ]
    assert all((image > 0).any(0).sum() <= tall * wide for image, (_, _, tall, wide) in zip(images, boxes, strict=True))
    constant = [len(np.unique(part.reshape(3, -1), axis=1).T) == 1 for part in inside]
    assert all(constant) == (paint != "noise")
    pixels = np.concatenate([part.reshape(3, -1)[:, : 1 if paint != "noise" else None] for part in inside], 1)
    if paint == "mean":
        assert (pixels == [[100], [50], [200]]).all()
    else:
        assert np.abs(pixels.mean(1) - MEAN).max() < 10 and pixels.std(1).min() > 5


def test_cutout_is_a_square_that_the_edge_may_cut():
    images = Cutout(side=4).apply(np.zeros((2000, 3, 10, 12), np.uint8), MANY.of(slice(2000)), MEAN)
    holes = (images == np.array([100, 50, 200])[:, None, None]).all(1)
    assert (holes.any((1, 2))).all() and ((images > 0).all(1) == holes).all()
    sizes = holes.sum((1, 2))
    assert sizes.max() == 16 and sizes.min() == 4  # a corner of a square whose middle is the image's corner
    share = holes.mean(0)
    assert abs(share[5, 6] - 16 / 120) < 0.03  # the middle of each comes about everywhere as often
    assert (Cutout(side=4, count=3).apply(images * 0, MANY.of(slice(2000)), MEAN) > 0).sum() > 2 * (images > 0).sum()


@pytest.mark.parametrize(("options", "key"), [({"area": (0.0, 0.3)}, "area"), ({"area": (0.5, 1.0)}, "area"),
                                              ({"ratio": (2.0, 1.0)}, "ratio")])  # fmt: skip
def test_faults(options, key):
    assert [at for at, _ in Erase(**options).faults()] == [key]
