"""The policies' operations against torchvision's: the same tables, the same strengths, the same pixels."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from shoal.data.augment.draws import Draws
from shoal.data.augment.operations import NAMES, SIGNED, operated, strengths
from shoal.data.augment.policies.autoaugment import AutoAugment, table
from shoal.data.augment.policies.randaugment import RandAugment
from shoal.data.augment.policies.trivialaugment import TrivialAugment
from small_images import picture

IMAGE = picture(3, 24, 32).transpose(2, 0, 1).copy()
WAYS = {"randaugment": (v2.RandAugment(), 31, False), "trivialaugment": (v2.TrivialAugmentWide(), 31, True),
        "autoaugment": (v2.AutoAugment(), 10, False)}  # fmt: skip
EVERY = [(way, name) for way, (theirs, _, _) in WAYS.items() for name in theirs._AUGMENTATION_SPACE]


def as_theirs(way: v2.Transform, image: np.ndarray, name: str, strength: float, **options) -> np.ndarray:
    how = {"interpolation": v2.InterpolationMode.NEAREST, "fill": {}, **options}
    return way._apply_image_or_video_transform(torch.from_numpy(image), name, strength, **how).numpy()


@pytest.mark.parametrize(("way", "name"), EVERY)
def test_strengths_are_torchvisions(way: str, name: str):
    theirs, bins, wide = WAYS[way]
    space, signed = theirs._AUGMENTATION_SPACE[name]
    values = space(bins, 24, 32)
    assert (name in SIGNED) == signed
    expected = (0.0,) * bins if values is None else tuple(float(value) for value in values)
    assert strengths(name, bins, 24, 32, wide=wide) == expected


@pytest.mark.parametrize(("way", "name"), EVERY)
def test_pixels_are_torchvisions(way: str, name: str):
    theirs, bins, wide = WAYS[way]
    for level in (0, bins // 2, bins - 1):
        strength = strengths(name, bins, 24, 32, wide=wide)[level]
        for one in (strength, -strength) if name in SIGNED else (strength,):
            ours = operated(IMAGE[None].copy(), name, one, fill=0, filter="nearest")[0] if name != "Identity" else IMAGE
            difference = np.abs(ours.astype(int) - as_theirs(theirs, IMAGE, name, one))
            # Blends have two roundings here, one there, so that any batch has the same bits.
            assert difference.max() <= (name in ("Brightness", "Color", "Contrast")) and difference.mean() < 0.01


def test_linear_resampling_and_fill_are_torchvisions():
    for name, strength in (("Rotate", 20.0), ("ShearX", 0.3), ("TranslateY", -5.0)):
        theirs = as_theirs(WAYS["randaugment"][0], IMAGE, name, strength,
                           interpolation=v2.InterpolationMode.BILINEAR, fill={torch.Tensor: [99.0]})  # fmt: skip
        assert np.array_equal(operated(IMAGE[None].copy(), name, strength, fill=99, filter="linear")[0], theirs)


@pytest.mark.parametrize("name", ["imagenet", "cifar10", "svhn"])
def test_autoaugments_tables_are_torchvisions(name: str):
    theirs = v2.AutoAugment(v2.AutoAugmentPolicy(name))._policies
    assert [[(one, chance, level or 0) for one, chance, level in pair] for pair in theirs] == [
        list(pair) for pair in table(name)
    ]


def test_operations_come_about_as_often_as_they_should():
    draws = Draws(np.arange(14_000), 0, 0)
    rounds = list(RandAugment(count=2, magnitude=30).rounds(draws, 32, 32))
    for chosen in rounds:
        counts = Counter(name for name, _ in chosen)
        assert set(counts) == set(NAMES) and all(abs(count - 1000) < 150 for count in counts.values())
        turned = [strength for name, strength in chosen if name == "Rotate"]
        assert set(turned) == {-30.0, 30.0} and abs(turned.count(30.0) / len(turned) - 0.5) < 0.08
    assert rounds[0] != rounds[1]
    (trivial,) = TrivialAugment().rounds(draws, 32, 32)
    assert len({strength for name, strength in trivial if name == "Rotate"}) == 61  # 31 each way, one of them 0
    first, second = AutoAugment().rounds(draws, 32, 32)
    # Posterize 0.4 8, Rotate 0.6 9: of one in 25 images
    both = sum(pair == (("Posterize", 4.0), ("Rotate", 30.0)) for pair in zip(first, second, strict=True))
    assert abs(both - 14_000 / 25 * 0.4 * 0.6 / 2) < 30


def test_a_magnitude_beyond_the_bins_is_told():
    assert RandAugment(magnitude=31).faults() == [("magnitude", "31 is none of 0 to 30 (bins - 1)")]
    assert not RandAugment(magnitude=30).faults()
