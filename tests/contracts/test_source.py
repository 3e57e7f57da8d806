"""What every source must do, the one that is added tomorrow too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from a_part import MINIMAL, assert_torch_free, minimal, parts
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.augment import Augment
from shoal.data.decode import Pictures
from shoal.data.image import Bytes
from small_images import cifar_files, class_folders, rec_pair, write_files


def _folders(root: Path, **options: Any) -> Path:
    for split in ("train", "val"):
        class_folders(root / split, {"ant": 9, "bee": 7, "cat": 8}, **options)
    return root


FILES: dict[str, dict[str, Callable[[Path], Path]]] = {
    "cifar10": {
        "python": lambda root: write_files(root / "cifar-10-batches-py", cifar_files()),
        "rec": rec_pair,
    },
    "folder": {"large": _folders, "small": lambda root: _folders(root, sizes=((20, 24),))},
    "recordio": {"large": lambda root: rec_pair(root, sizes=(32, 48)), "small": rec_pair},
}
"""Source -> the forms of its files, each with what makes a small one of it and says where it is. A source of files that
is not named here is skipped."""

pytestmark = pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name in parts("sources") for form in FILES.get(name, {"": None})]
)


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Callable[[str, str], Path]:
    """Where the files of a form of a source are; made once."""
    paths: dict[tuple[str, str], Path] = {}

    def find(name: str, form: str) -> Path:
        if (name, form) not in paths:
            paths[name, form] = FILES[name][form](tmp_path_factory.mktemp(f"{name}-{form}"))
        return paths[name, form]

    return find


@pytest.fixture
def source_of(name, form, made) -> Callable[..., Any]:
    """The source, opened without a network; one whose files nobody makes here skips the test."""

    def make(**options: Any) -> Any:
        if form:
            options["path"] = str(made(name, form))
        source = minimal("sources", name, limit=60, **options)
        files = [field.name for field in msgspec.structs.fields(source) if field.name in ("path", "url", "root")]
        if files and not form and ("sources", name) not in MINIMAL:
            pytest.skip(f"sources/{name} reads files ({', '.join(files)}) that nobody makes; tell how in FILES")
        return source

    return make


@pytest.fixture(params=["train", "val"])
def split(request) -> str:
    return request.param


def test_labels_are_classes_or_none(source_of, split):
    images = source_of().open(split)
    assert images.labels.dtype == np.int64 and images.labels.ndim == 1
    assert 0 < len(images.labels) <= 60
    assert images.labels.min() >= -1 and images.labels.max() < len(images.classes)
    assert (images.labels >= 0).any()
    assert isinstance(images.classes, tuple) and all(isinstance(known, str) for known in images.classes)
    assert len(set(images.classes)) == len(images.classes)


def test_both_splits_agree_on_classes_and_format(source_of):
    source = source_of()
    train, val = source.open("train"), source.open("val")
    assert train.classes == val.classes
    assert (train.mean, train.std) == (val.mean, val.std)
    assert train.shape[0] == val.shape[0]


def test_normalisation_is_per_channel_in_units_of_pixels(source_of, split):
    images = source_of().open(split)
    channels = images.shape[0]
    assert len(images.mean) == len(images.std) == channels
    assert all(0 <= value <= 255 for value in images.mean)
    assert all(0 < value <= 255 for value in images.std)


def test_images_can_be_read_in_any_order_and_company(source_of, split):
    images = source_of().open(split)
    everything = np.arange(len(images.labels))
    if not hasattr(images, "pixels"):
        assert all(images.image(int(index)).shape[0] == images.shape[0] for index in everything[:5])
        encoded = [images.read(int(index)) for index in everything]
        assert all(isinstance(image, Bytes) and image for image in encoded)
        assert [images.read(int(index)) for index in everything[::-1]] == encoded[::-1]
        return
    whole = images.pixels(everything)
    assert whole.dtype == np.uint8 and whole.shape == (len(everything), *images.shape)

    @given(st.lists(st.sampled_from(everything.tolist()), max_size=12))
    @settings(max_examples=30)
    def any_order(indices: list[int]) -> None:
        some = images.pixels(np.array(indices, np.int64))
        assert some.dtype == np.uint8
        assert np.array_equal(some, whole[indices])

    any_order()


def test_pixels_are_a_copy_that_augmentation_may_write_into(source_of, split):
    images = source_of().open(split)
    if not hasattr(images, "pixels"):
        pytest.skip("encoded images are decoded anew each time")
    for indices in (np.arange(3), np.arange(len(images.labels))):
        before = images.pixels(indices)
        kept = before.copy()
        before ^= 255
        assert np.array_equal(images.pixels(indices), kept)


def test_opening_again_gives_the_same(source_of, split):
    one, other = source_of().open(split), source_of().open(split)
    assert np.array_equal(one.labels, other.labels)
    if hasattr(one, "pixels"):
        everything = np.arange(len(one.labels))
        assert np.array_equal(one.pixels(everything), other.pixels(everything))


def test_all_look_the_same_to_the_model_in_any_company_by_any_number_of_threads(source_of, split):
    images, augment = source_of().open(split), Augment(size=7, mirror=True)
    everything = np.arange(len(images.labels))
    whole, labels = Pictures(images, augment).train(everything, seed=1, epoch=2)
    assert whole.shape == (len(everything), images.shape[0], 7, 7) and np.array_equal(labels, images.labels)
    some = everything[::-3]
    assert np.array_equal(Pictures(images, augment, 3).train(some, seed=1, epoch=2)[0], whole[some])
    assert np.array_equal(Pictures(images, augment, 3).val(some)[0], Pictures(images, augment).val(everything)[0][some])


def test_images_from_memory_from_a_file_or_decoded_each_time_are_the_same(source_of, split, tmp_path):
    if not hasattr(source_of(), "cache"):
        pytest.skip("is in memory in any case")
    kept = {"cache": "file", "cache_path": str(tmp_path)}
    ways = [source_of(**options).open(split) for options in ({}, {"cache": "none"}, kept, kept)]
    everything = np.arange(len(ways[0].labels))
    looks = [Pictures(images, Augment(size=7, mirror=True)).train(everything, seed=1, epoch=2)[0] for images in ways]
    for images, look in zip(ways, looks, strict=True):
        assert np.array_equal(images.labels, ways[0].labels) and images.classes == ways[0].classes
        assert np.array_equal(look, looks[0])


def test_importing_it_does_not_import_torch(name, form):
    assert_torch_free("sources", name)
