"""Augmentation of a whole batch, against one that treats image by image; random numbers belong to the sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.augment import Augment
from shoal.data.order import key, uniform


def images_of(count: int, channels: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, channels, height, width), np.uint8)


def plain(augment: Augment, image: np.ndarray, index: int, *, seed: int, epoch: int) -> np.ndarray:
    """One image [C, H, W], pixel by pixel."""

    def drawn(stream: int) -> float:
        return float(uniform(key(seed, epoch, stream), np.array([index]))[0])

    def pixel(channel: int, y: int, x: int) -> int:
        if augment.pad_mode == "constant" and not (0 <= y < height and 0 <= x < width):
            return augment.fill
        if augment.pad_mode == "edge":
            y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
        if augment.pad_mode == "reflect":  # the edge itself is not repeated
            y, x = (height - 1) - abs((height - 1) - abs(y)), (width - 1) - abs((width - 1) - abs(x))
        return int(image[channel, y, x])

    channels, height, width = image.shape
    tall, wide = (augment.crop or height), (augment.crop or width)
    top = int(drawn(1) * (height + 2 * augment.pad - tall + 1)) - augment.pad
    left = int(drawn(2) * (width + 2 * augment.pad - wide + 1)) - augment.pad
    columns = range(left, left + wide)
    first = float(uniform(key(seed, 0, 3), np.array([index]))[0]) < 0.5
    if (augment.mirror == "alternate" and first == (epoch % 2 == 0)) or (augment.mirror is True and drawn(3) < 0.5):
        columns = reversed(columns)
    columns = list(columns)
    return np.array(
        [[[pixel(c, y, x) for x in columns] for y in range(top, top + tall)] for c in range(channels)], np.uint8
    )


@st.composite
def augments(draw) -> tuple[Augment, int, int]:
    height, width = draw(st.integers(3, 7)), draw(st.integers(3, 7))
    augment = Augment(
        pad=draw(st.integers(0, 2)),
        pad_mode=draw(st.sampled_from(["constant", "edge", "reflect"])),
        fill=draw(st.sampled_from([0, 7, 255])),
        crop=draw(st.none() | st.integers(1, min(height, width))),
        mirror=draw(st.sampled_from([False, True, "alternate"])),
    )
    assert augment.fault(3, height, width) is None
    return augment, height, width


@given(what=augments(), seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_a_batch_is_what_its_images_are_one_by_one(what, seed, epoch):
    augment, height, width = what
    images, indices = images_of(5, 2, height, width), np.array([4, 0, 1000, 77, 3])
    whole = augment.train(images.copy(), indices, seed=seed, epoch=epoch)
    one_by_one = [plain(augment, *one, seed=seed, epoch=epoch) for one in zip(images, indices.tolist(), strict=True)]
    assert whole.dtype == np.uint8
    assert np.array_equal(whole, np.stack(one_by_one))


@given(what=augments(), chosen=st.permutations(range(12)), size=st.integers(0, 12))
def test_an_image_looks_the_same_in_any_batch(what, chosen, size):
    augment, height, width = what
    images, some = images_of(12, 1, height, width), np.array(chosen[:size], np.int64)
    whole = augment.train(images.copy(), np.arange(12), seed=1, epoch=2)
    part = augment.train(images[some], some, seed=1, epoch=2)
    assert part.shape == (size, *whole.shape[1:])
    assert np.array_equal(part, whole[some])


def test_another_epoch_or_seed_looks_otherwise():
    augment, images = Augment(pad=4, mirror=True), images_of(64, 1, 8, 8)

    def looks(seed: int, epoch: int) -> bytes:
        return augment.train(images.copy(), np.arange(64), seed=seed, epoch=epoch).tobytes()

    assert len({looks(0, 0), looks(0, 1), looks(1, 0)}) == 3


def test_every_place_and_both_directions_come_about_equally_often():
    augment = Augment(pad=1, mirror=True)
    image = np.zeros((1, 1, 5, 5), np.uint8)
    image[0, 0, 2, 2], image[0, 0, 2, 1] = 2, 1  # an arrow to the left
    many = augment.train(np.repeat(image, 9_000, 0), np.arange(9_000), seed=0, epoch=0)[:, 0]
    _, rows, columns = np.nonzero(many == 2)
    places = np.bincount((rows - 1) * 3 + columns - 1, minlength=9)
    assert places.sum() == 9_000 and (abs(places - 1_000) < 200).all()
    turned = (many[np.arange(9_000), rows, columns - 1] == 0).sum()
    assert abs(turned - 4_500) < 300


def test_an_alternating_mirror_shows_both_sides_in_two_epochs():
    augment, images = Augment(mirror="alternate"), images_of(40, 1, 3, 4)
    first, second = (augment.train(images.copy(), np.arange(40), seed=3, epoch=epoch) for epoch in (4, 5))
    assert np.array_equal(first, second[..., ::-1])
    assert 5 < sum(np.array_equal(*pair) for pair in zip(first, images, strict=True)) < 35


def test_without_options_nothing_changes():
    images = images_of(6, 3, 4, 5)
    assert np.array_equal(Augment().train(images.copy(), np.arange(6), seed=0, epoch=0), images)
    assert np.array_equal(Augment().centre(images), images)


@pytest.mark.parametrize(
    ("crop", "rows", "columns"), [(None, (0, 6), (0, 9)), (4, (1, 5), (2, 6)), (5, (0, 5), (2, 7))]
)
def test_validation_takes_the_centre(crop, rows, columns):
    images = images_of(3, 2, 6, 9)
    augment = Augment(crop=crop, pad=2, mirror=True)
    assert np.array_equal(augment.centre(images), images[:, :, slice(*rows), slice(*columns)])
    assert augment.centre(images).shape[2:] == augment.seen(6, 9)


@pytest.mark.parametrize(
    ("augment", "told"),
    [
        (Augment(), None),
        (Augment(crop=8), None),
        (Augment(crop=8, pad=4), None),
        (Augment(pad=7, pad_mode="reflect"), None),
        (Augment(pad=8, pad_mode="edge"), None),
        (Augment(crop=13, pad=2), "a crop of 13 px does not fit images of 8 x 10 px padded by 2"),
        (Augment(crop=9, pad=2), "validation takes a centre crop of 9 px, more than the 8 x 10 px of an image"),
        (Augment(pad=8, pad_mode="reflect"), "a reflected pad of 8 px needs images larger than that, not 8 x 10 px"),
    ],
)
def test_faults(augment, told):
    assert augment.fault(3, 8, 10) == told
