"""Data that does not fit its recipe is told before training; what there is to say of it is said at the start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shoal.base.errors import UsageError
from shoal.recipe.load import parse
from shoal.step.gang import Alone
from shoal.train.setup import Setup, open_data
from small_images import jpeg, write_rec


def opened(folder: Path, labels: list[float], *overrides: str, val: list[float] | None = None):
    images = [jpeg(number) for number in range(len(labels))]
    write_rec(folder / "train.rec", images, labels)
    write_rec(folder / "val.rec", images, val or labels)
    text = f"{{data: {{name: recordio, path: {folder}}}, model: cifar-resnet8, optim: {{name: sgd, lr: 0.1}}}}"
    return open_data(parse(text, "my.yaml", ["batch=2", "length=1ep", *overrides]).recipe)


def test_labels_out_of_range(tmp_path):
    with pytest.raises(UsageError, match="recordio, train image 2 has label 9, but the model has 5 outputs"):
        opened(tmp_path, [0, 1, 9], "model.classes=5")
    with pytest.raises(UsageError, match="recordio, val image 1 has label 3, but the model has 3 outputs"):
        opened(tmp_path, [0, 1, 2], val=[0, 3, 1])


def test_a_model_that_starts_from_images_does_so_unless_it_is_restored(tmp_path):
    opened(tmp_path, [0, 1, 0, 1])
    text = f"{{data: {{name: recordio, path: {tmp_path}}}, model: cifar-whitenet8, optim: {{name: sgd, lr: 0.1}}}}"
    recipe = parse(text, "my.yaml", ["batch=2", "length=1ep"]).recipe
    data = open_data(recipe)

    def stem(*, pretrained: bool) -> torch.Tensor:
        return Setup.of(recipe, Alone(), data, pretrained=pretrained).rig.model.get_parameter("stem.weight")

    assert torch.equal(stem(pretrained=True), stem(pretrained=True)) and stem(pretrained=True).any()
    assert not stem(pretrained=False).any()


def test_crops_that_do_not_fit(tmp_path):
    with pytest.raises(UsageError, match="a crop of 40 px does not fit images of 32 x 32 px padded by 2"):
        opened(tmp_path, [0, 1], "data.augment.crop=40", "data.augment.pad=2")


def test_skipped_images_are_noted(tmp_path):
    data = opened(tmp_path, [0, 1])
    assert data.notes == () and data.classes == 2
    write_rec(tmp_path / "train.rec", [jpeg(0), b"junk"], [0, 1])
    text = f"{{data: {{name: recordio, path: {tmp_path}}}, model: cifar-resnet8, optim: {{name: sgd, lr: 1}}}}"
    (note,) = open_data(parse(text, "my.yaml", ["batch=2", "length=1ep", "data.on_bad=skip"]).recipe).notes
    assert note.startswith("data, train: 1 of 2 images skipped; the first: ") and "train.rec: record 1 at byte" in note
