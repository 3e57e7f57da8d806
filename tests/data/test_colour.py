"""Changes of colour against torchvision, colorsys and plain float64."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional

from shoal.data.augment.colour import (
    EIGENVALUES,
    EIGENVECTORS,
    Colour,
    brightened,
    contrasted,
    hls_shifted,
    lit,
    saturated,
)
from shoal.data.augment.draws import Draws
from small_images import picture

IMAGES = np.stack([picture(number, 12, 10).transpose(2, 0, 1) for number in range(20)])
ALL = Colour(brightness=0.4, contrast=0.4, saturation=0.4, hls=(36, 50, 50), pca=0.1)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (brightened, functional.adjust_brightness),
        (contrasted, functional.adjust_contrast),
        (saturated, functional.adjust_saturation),
    ],
    ids=["brightness", "contrast", "saturation"],
)
def test_blends_are_torchvisions(ours, theirs):
    factors = np.linspace(0, 2, 20)
    changed = ours(IMAGES, factors)
    for place, factor in enumerate(factors):
        expected = theirs(torch.from_numpy(IMAGES[place]), factor).numpy()
        assert np.abs(changed[place].astype(int) - expected).max() <= 1
    assert np.array_equal(ours(IMAGES, np.ones(20)), IMAGES)


@given(pixel=st.tuples(*[st.integers(0, 255)] * 3), shift=st.tuples(*[st.integers(-60, 60)] * 3))
def test_hue_lightness_and_saturation_are_colorsys_and_stop_at_their_ends(pixel, shift):
    changed = hls_shifted(np.array(pixel, np.uint8).reshape(1, 3, 1, 1), np.array([shift], float)).reshape(3)
    ends = np.array([180, 255, 255])
    hls = np.clip(np.array(colorsys.rgb_to_hls(*np.array(pixel) / 255)) * ends + shift, 0, ends) / ends
    assert np.abs(np.array(colorsys.hls_to_rgb(*hls)) * 255 - changed).max() < 0.51


def test_hls_is_opencvs_but_for_its_rounding():
    cv2 = pytest.importorskip("cv2")
    shift = np.array([20, -30, 40])
    changed = hls_shifted(IMAGES[:1], shift[None].astype(float))[0]
    theirs = cv2.cvtColor(np.ascontiguousarray(IMAGES[0].transpose(1, 2, 0)), cv2.COLOR_RGB2HLS).astype(int) + shift
    theirs = cv2.cvtColor(np.clip(theirs, 0, (180, 255, 255)).astype(np.uint8), cv2.COLOR_HLS2RGB)
    difference = np.abs(theirs.transpose(2, 0, 1).astype(int) - changed)
    assert difference.max() <= 6 and difference.mean() < 1


def test_lighting_is_along_the_principal_components():
    draws = Draws(np.arange(4000), 0, 0)
    shifts = Colour(pca=0.1)._lighting(draws)
    noise = shifts @ np.linalg.inv(np.array(EIGENVECTORS) * EIGENVALUES).T
    assert np.abs(noise.mean(0)).max() < 0.01 and np.abs(noise.std(0) - 0.1).max() < 0.005
    assert np.abs(np.corrcoef(noise.T) - np.eye(3)).max() < 0.05
    expected = np.clip(IMAGES.astype(float) + shifts[:20, :, None, None], 0, 255)
    assert np.abs(lit(IMAGES, shifts[:20]) - np.floor(expected)).max() <= 1


def test_blends_come_in_every_order():
    flat = np.array([200, 60, 20], np.uint8).reshape(1, 3, 1, 1)
    # Neither of the two alone can tell which came first; with clipping between them, pixels can.
    seen = Colour(brightness=1, saturation=1).apply(np.repeat(flat, 500, 0), Draws(np.arange(500), 0, 0))
    factors = [Draws(np.arange(500), 0, 0).between(0, 2, 9 + 1, 0, number) for number in (0, 2)]
    some = np.repeat(flat, 500, 0)
    bright_first = saturated(brightened(some, factors[0]), factors[1])
    grey_first = brightened(saturated(some, factors[1]), factors[0])
    tell = (bright_first != grey_first).any((1, 2, 3))
    first = (seen == bright_first).all((1, 2, 3)) & tell
    assert ((seen == grey_first).all((1, 2, 3)) | (seen == bright_first).all((1, 2, 3))).all()
    assert 0.4 < first.sum() / tell.sum() < 0.6 and tell.sum() > 100


def test_nothing_asked_nothing_changed():
    assert np.array_equal(Colour().apply(IMAGES.copy(), Draws(np.arange(20), 0, 0)), IMAGES)


def test_grey_images_know_brightness_and_contrast():
    grey = IMAGES[:, :1]
    changed = Colour(brightness=0.5, contrast=0.5).apply(grey.copy(), Draws(np.arange(20), 0, 0))
    assert changed.shape == grey.shape and (changed != grey).any()
    named = [Colour(brightness=1), Colour(saturation=0.1), Colour(hls=(0, 1, 0)), Colour(pca=0.1)]
    assert [one.of_three_channels for one in named] == [None, "saturation", "hls", "pca"]


def test_faults():
    assert Colour(hls=(181, 0, 0)).faults()[0][0] == "hls" and not ALL.faults()
