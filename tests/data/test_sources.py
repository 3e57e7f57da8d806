"""The built-in sources, and the arrays in memory behind them."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.data.source import Held
from shoal.data.sources.digits import Digits
from shoal.data.sources.synthetic import Synthetic


def test_digits_are_the_published_ones():
    train, val = Digits().open("train"), Digits().open("val")
    assert (len(train.labels), len(val.labels)) == (1438, 359)
    assert train.shape == val.shape == (1, 8, 8)
    assert train.classes == val.classes == tuple("0123456789")
    for split in (train, val):
        counts = np.bincount(split.labels, minlength=10)
        assert counts.min() > 0.07 * len(split.labels) and counts.max() < 0.13 * len(split.labels)
    both = np.concatenate([train.images, val.images])
    assert len({image.tobytes() for image in both}) == 1797  # no validation image is trained on


def test_digits_are_normalised_by_their_own_figures():
    train = Digits().open("train")
    assert train.mean == (pytest.approx(train.images.mean(), abs=0.05),)
    assert train.std == (pytest.approx(train.images.std(), abs=0.05),)


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("source", [Digits(), Synthetic(images=300, noise=1.0)], ids=["digits", "synthetic"])
def test_a_source_opens_the_same_every_time(source, split):
    np.random.seed(1)
    one = source.open(split)
    np.random.seed(2)
    other = source.open(split)
    assert np.array_equal(one.images, other.images) and np.array_equal(one.labels, other.labels)


@pytest.mark.parametrize("kind", [Digits, Synthetic])
def test_limit_takes_the_first_of_each_split(kind):
    for split in ("train", "val"):
        whole, some = kind().open(split), kind(limit=17).open(split)
        assert np.array_equal(some.images, whole.images[:17]) and np.array_equal(some.labels, whole.labels[:17])
        assert len(kind(limit=10**9).open(split).labels) == len(whole.labels)


def test_synthetic_is_as_asked():
    source = Synthetic(images=600, classes=7, channels=2, size=5)
    train, val = source.open("train"), source.open("val")
    assert (len(train.labels), len(val.labels)) == (600, 150)
    assert train.shape == (2, 5, 5) and train.images.shape == (600, 2, 5, 5)
    assert np.array_equal(np.unique(train.labels), np.arange(7)) and len(train.classes) == 7
    assert len(train.mean) == len(train.std) == 2
    assert len(Synthetic(images=3).open("val").labels) == 1


def test_synthetic_splits_share_patterns_but_not_noise():
    source = Synthetic(images=80, noise=0.5)
    train, val = source.open("train"), source.open("val")
    assert not np.array_equal(train.images[:20], val.images)
    silent = Synthetic(images=80, noise=0.0)
    assert np.array_equal(silent.open("train").images[:20], silent.open("val").images)


def test_synthetic_is_normalised_by_its_own_figures():
    train = Synthetic(images=500).open("train")
    assert train.images.mean() == pytest.approx(train.mean[0], abs=1)
    assert train.images.std() == pytest.approx(train.std[0], rel=0.03)


def test_held_images_are_handed_out_as_copies():
    held = Held(np.zeros((4, 1, 2, 2), np.uint8), np.zeros(4, np.uint8), ("a",), mean=(0.0,), std=(1.0,))
    held.pixels(np.arange(4))[:] = 9
    assert not held.images.any()
    assert held.labels.dtype == np.int64
