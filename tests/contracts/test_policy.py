"""What every policy must do: change images by the sample's own numbers, the same in a batch of any size."""

from __future__ import annotations

import numpy as np
import pytest
from a_part import assert_torch_free, minimal, parts
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.augment.draws import Draws
from small_images import picture


@pytest.fixture(params=parts("policies"), scope="module")
def policy(request):
    return minimal("policies", request.param)


def pictures(count: int, channels: int = 3, side: int = 16) -> np.ndarray:
    return np.stack([picture(number, side, side)[..., :channels].transpose(2, 0, 1) for number in range(count)])


def test_its_file_is_torch_free(policy):
    assert_torch_free("policies", policy.name)


@given(chosen=st.permutations(range(40)), size=st.integers(1, 40), epoch=st.integers(0, 3))
@settings(max_examples=10)
def test_an_image_looks_the_same_in_any_batch(policy, chosen, size, epoch):
    images, some = pictures(40), np.array(chosen[:size])
    whole = policy.apply(images.copy(), Draws(np.arange(40), 1, epoch))
    part = policy.apply(images[some], Draws(some, 1, epoch))
    assert part.dtype == np.uint8 and part.shape == (size, 3, 16, 16)
    assert np.array_equal(part, whole[some])


def test_another_epoch_or_seed_looks_otherwise(policy):
    images = pictures(40)
    looks = {policy.apply(images.copy(), Draws(np.arange(40), *of)).tobytes() for of in ((0, 0), (0, 1), (1, 0))}
    assert len(looks) == 3


def test_grey_images_are_changed_too(policy):
    images = pictures(40, channels=1)
    changed = policy.apply(images.copy(), Draws(np.arange(40), 0, 0))
    assert changed.shape == images.shape and (changed != images).any((1, 2, 3)).sum() > 5


def test_what_comes_in_from_outside_is_the_fill(policy):
    images = np.full((60, 3, 16, 16), 255, np.uint8)
    filled = minimal("policies", policy.name, fill=7).apply(images.copy(), Draws(np.arange(60), 0, 0))
    assert (filled[:, :, 0, 0] == 7).any() or (filled[:, :, -1, -1] == 7).any()
