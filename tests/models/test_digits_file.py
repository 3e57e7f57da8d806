"""The digits file in the package: sizes, ranges, balance, licence."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest

FOLDER = files("shoal") / "data" / "digits"


@pytest.fixture(scope="module")
def digits():
    with (FOLDER / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def test_sizes_and_types(digits):
    shapes = {name: (array.dtype.name, array.shape) for name, array in digits.items()}
    assert shapes == {
        "train_images": ("uint8", (1438, 8, 8)),
        "train_labels": ("uint8", (1438,)),
        "val_images": ("uint8", (359, 8, 8)),
        "val_labels": ("uint8", (359,)),
    }
    assert len((FOLDER / "digits.npz").read_bytes()) < 60_000


def test_pixels_are_the_seventeen_scaled_counts(digits):
    values = set(np.unique(digits["train_images"])) | set(np.unique(digits["val_images"]))
    assert values == {round(count * 255 / 16) for count in range(17)}


@pytest.mark.parametrize("part", ["train", "val"])
def test_every_class_has_about_its_tenth(digits, part):
    counts = np.bincount(digits[f"{part}_labels"])
    assert len(counts) == 10
    assert counts.min() > 0.95 * counts.mean() and counts.max() < 1.05 * counts.mean()


def test_no_image_is_in_both_parts(digits):
    images = [image.tobytes() for part in ("train", "val") for image in digits[f"{part}_images"]]
    assert len(set(images)) == 1797


def test_the_licence_lies_beside_it():
    text = (FOLDER / "LICENCE").read_text(encoding="utf-8")
    for word in ("Alpaydin", "Kaynak", "10.24432/C50P49", "CC BY 4.0", "Changes made"):
        assert word in text
