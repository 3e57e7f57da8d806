"""Turned, sheared and scaled images against numpy, OpenCV with MXNet's matrix, and the plain crop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.augment import Augment
from shoal.data.augment.affine import Affine, part, warped
from shoal.data.augment.draws import AFFINE, Draws
from small_images import picture

IMAGE = picture(3, 24, 32).transpose(2, 0, 1).copy()
QUARTER = np.array([[0.0, -1.0], [1.0, 0.0]])


@given(
    pad=st.integers(0, 3),
    pad_mode=st.sampled_from(["constant", "edge", "reflect"]),
    crop=st.none() | st.integers(1, 6),
    mirror=st.sampled_from([False, True, "alternate"]),
    size=st.tuples(st.integers(6, 9), st.integers(6, 9)),
    seed=st.integers(0, 9),
)
@settings(max_examples=50)
def test_by_nothing_it_is_the_plain_crop_to_the_bit(pad, pad_mode, crop, mirror, size, seed):
    options = {"pad": pad, "pad_mode": pad_mode, "crop": crop, "mirror": mirror, "fill": 9}
    images = np.random.default_rng(seed).integers(0, 256, (7, 3, *size), np.uint8)
    plain, turned = (
        Augment(**options, affine=affine).train(images.copy(), np.arange(7), seed=seed, epoch=1)
        for affine in (None, Affine())
    )
    assert np.array_equal(plain, turned)


@pytest.mark.parametrize(("outside", "pixel"), [("constant", 9), ("edge", 1), ("reflect", 3)])
def test_what_lies_outside(outside, pixel):
    image = np.array([1, 2, 3, 4], np.uint8).reshape(1, 1, 1, 4).repeat(4, 2)
    back = np.array([[[1.0, 0, -2], [0, 1, 0]]])  # moved right by two
    seen = warped(image, back, 4, 4, outside=outside, fill=9)[0, 0, 0]
    assert seen[2:].tolist() == [1, 2] and seen[0] == pixel


def test_a_quarter_turn_is_numpys():
    square = IMAGE[:, :, :24]
    assert np.array_equal(part(QUARTER, square, (0, 0, 24, 24), 24, outside="constant", fill=0, antialias=True),
                          np.rot90(square, 1, (1, 2)))  # fmt: skip


@pytest.mark.parametrize("outside", ["constant", "reflect"])
def test_a_shrinking_turn_looks_at_all_pixels_that_fall_together(outside):
    fine = np.zeros((3, 96, 96), np.uint8)
    fine[:, ::2] = 255
    for antialias, low, high in ((True, 118, 138), (False, 0, 255)):
        seen = part(QUARTER, fine, (16, 16, 64, 64), 8, outside=outside, fill=0, antialias=antialias)
        assert low <= seen.min() <= seen.max() <= high


@given(top=st.integers(0, 9), left=st.integers(0, 9), angle=st.floats(-3.1, 3.1), seed=st.integers(0, 3))
@settings(max_examples=30)
def test_only_the_part_that_is_seen_is_shrunk_and_nothing_else_changes(top, left, angle, seed):
    """Shrinking the whole image first gives the same picture, within what the grids of the two differ."""
    smooth = np.linspace(0, 200, 60)[:, None] + np.linspace(0, 55, 80)[None]
    image = np.stack([smooth, smooth[::-1], smooth[:, ::-1]]).astype(np.uint8)
    matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    box = (top, left, 50, 70)
    cut = part(matrix, image, box, 20, outside="edge", fill=0, antialias=True)
    plain = part(matrix, image, box, 20, outside="edge", fill=0, antialias=False)
    assert cut.shape == (3, 20, 20) and np.abs(cut.astype(int) - plain).max() <= 12


def test_without_turning_a_part_is_the_resized_part():
    import torch

    from shoal.data.image import resized

    for side in (16, 40):
        plain = resized(torch.from_numpy(IMAGE[:, 3:21, 4:24]), side, side).numpy().astype(int)
        ours = part(np.eye(2), IMAGE, (3, 4, 18, 20), side, outside="edge", fill=0, antialias=True)
        inner = (slice(None), slice(3, -3), slice(3, -3))  # at its edge this looks at the pixels around, too
        assert np.abs(ours.astype(int) - plain)[inner].max() <= (2 if side == 40 else 12)


def test_it_is_opencvs_warp_by_mxnets_matrix():
    cv2 = pytest.importorskip("cv2")
    affine = Affine(rotate=30, shear=0.2, scale=(0.8, 1.4), ratio=(0.75, 1.25))
    draws = Draws(np.arange(30), 5, 0)
    smooth = cv2.GaussianBlur(IMAGE.transpose(1, 2, 0), (0, 0), 1.5)
    angles, shears, scales, ratios = (
        draws.between(*ends, AFFINE, number)
        for number, ends in enumerate([(-np.radians(30), np.radians(30)), (-0.2, 0.2), affine.scale, affine.ratio])
    )
    seen = warped(np.repeat(smooth.transpose(2, 0, 1)[None], 30, 0), affine.windows(draws, (24, 32), (8, 8), 0),
                  8, 8, outside="constant", fill=127)  # fmt: skip
    for place in range(30):
        a, b, shear = np.cos(angles[place]), np.sin(angles[place]), shears[place]
        wide = 2 * scales[place] / (1 + ratios[place])
        high = ratios[place] * wide
        matrix = np.array([[wide * a - shear * b * high, wide * b + shear * a * high], [-b * high, a * high]])
        width, height = (round(scales[place] * side) for side in (32, 24))
        shift = (np.array([width, height]) - 1) / 2 - matrix @ (np.array([32, 24]) - 1) / 2
        whole = cv2.warpAffine(smooth, np.column_stack([matrix, shift]), (width, height), flags=cv2.INTER_LINEAR,
                               borderMode=cv2.BORDER_CONSTANT, borderValue=(127, 127, 127))  # fmt: skip
        row = int(draws.of(slice(place, place + 1)).whole(height - 7, 1)[0])
        column = int(draws.of(slice(place, place + 1)).whole(width - 7, 2)[0])
        theirs = whole[row : row + 8, column : column + 8].transpose(2, 0, 1).astype(int)
        assert np.abs(theirs - seen[place]).max() <= 6, place  # OpenCV's places are multiples of 1/32 pixel


def test_an_image_smaller_than_its_window_lies_in_the_middle():
    white = np.full((1, 1, 16, 16), 255, np.uint8)
    seen = Augment(affine=Affine(scale=(0.5, 0.5))).train(white, np.arange(1), seed=0, epoch=0)[0, 0]
    assert (seen[5:11, 5:11] == 255).all() and not seen[:3].any() and not seen[:, 13:].any()


@pytest.mark.parametrize(
    ("augment", "keys"),
    [
        (Augment(size=8, affine=Affine(scale=(0.5, 1))), ["affine.scale"]),
        (Augment(size=8, affine=Affine(ratio=(0.5, 1))), ["affine.ratio"]),
        (Augment(size=8, affine=Affine(rotate=9, shear=0.1)), []),
        (Affine(scale=(1.0, 0.5)), ["scale"]),
        (Affine(ratio=(0.0, 0.5)), ["ratio"]),
    ],
    ids=["scale with size", "ratio with size", "turn with size", "scale", "ratio"],
)
def test_faults(augment, keys):
    assert [key for key, _ in augment.faults()] == keys
