"""What every source must do, the one that is added tomorrow too."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from a_part import MINIMAL, assert_torch_free, minimal, parts
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.parametrize("name", parts("sources"))


def source_of(name: str, **options: Any) -> Any:
    """A source that opens without files of the user's and without a network; others skip the test."""
    source = minimal("sources", name, limit=60, **options)
    files = [field.name for field in msgspec.structs.fields(source) if field.name in ("path", "url", "root")]
    if files and ("sources", name) not in MINIMAL:
        pytest.skip(f"sources/{name} reads files ({', '.join(files)}) that are not there")
    return source


@pytest.fixture(params=["train", "val"])
def split(request) -> str:
    return request.param


def test_labels_are_classes_or_none(name, split):
    images = source_of(name).open(split)
    assert images.labels.dtype == np.int64 and images.labels.ndim == 1
    assert 0 < len(images.labels) <= 60
    assert images.labels.min() >= -1 and images.labels.max() < len(images.classes)
    assert (images.labels >= 0).any()
    assert isinstance(images.classes, tuple) and all(isinstance(known, str) for known in images.classes)
    assert len(set(images.classes)) == len(images.classes)


def test_both_splits_agree_on_classes_and_format(name):
    source = source_of(name)
    train, val = source.open("train"), source.open("val")
    assert train.classes == val.classes
    assert (train.mean, train.std) == (val.mean, val.std)
    assert train.shape[0] == val.shape[0]


def test_normalisation_is_per_channel_in_units_of_pixels(name, split):
    images = source_of(name).open(split)
    channels = images.shape[0]
    assert len(images.mean) == len(images.std) == channels
    assert all(0 <= value <= 255 for value in images.mean)
    assert all(0 < value <= 255 for value in images.std)


def test_images_can_be_read_in_any_order_and_company(name, split):
    images = source_of(name).open(split)
    everything = np.arange(len(images.labels))
    if not hasattr(images, "pixels"):
        encoded = [images.read(int(index)) for index in everything]
        assert all(isinstance(image, bytes) and image for image in encoded)
        assert [images.read(int(index)) for index in everything[::-1]] == encoded[::-1]
        return
    whole = images.pixels(everything)
    assert whole.dtype == np.uint8 and whole.shape == (len(everything), *images.shape)

    @given(st.lists(st.sampled_from(everything.tolist()), max_size=12))
    @settings(deadline=None, max_examples=30)
    def any_order(indices: list[int]) -> None:
        some = images.pixels(np.array(indices, np.int64))
        assert some.dtype == np.uint8
        assert np.array_equal(some, whole[indices])

    any_order()


def test_pixels_are_a_copy_that_augmentation_may_write_into(name, split):
    images = source_of(name).open(split)
    if not hasattr(images, "pixels"):
        pytest.skip("encoded images are decoded anew each time")
    for indices in (np.arange(3), np.arange(len(images.labels))):
        before = images.pixels(indices)
        kept = before.copy()
        before ^= 255
        assert np.array_equal(images.pixels(indices), kept)


def test_opening_again_gives_the_same(name, split):
    one, other = source_of(name).open(split), source_of(name).open(split)
    assert np.array_equal(one.labels, other.labels)
    if hasattr(one, "pixels"):
        everything = np.arange(len(one.labels))
        assert np.array_equal(one.pixels(everything), other.pixels(everything))


def test_importing_it_does_not_import_torch(name):
    assert_torch_free("sources", name)
