"""A model out of its checkpoint: on other images than those of its training, and from a run that goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from a_checkpoint import DIGITS, save_run
from shoal.base.errors import ShoalError, UsageError
from shoal.base.run import Run
from shoal.data.batches import Batch
from shoal.recipe.load import RecipeError
from shoal.train import checkpoint
from shoal.train.restored import Restored
from small_images import class_folders, jpeg, write_rec

FOLDER = """\
data: {name: folder, path: PATH, val_share: 0.5, augment: {size: 16}, eval_batch: 4}
model: cifar-resnet8
optim: {name: sgd, lr: 0.1}
batch: 4
length: 1ep
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return class_folders(tmp_path_factory.mktemp("images"), {"ant": 4, "bee": 4, "cat": 4})


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return save_run(tmp_path_factory.mktemp("run"), FOLDER.replace("PATH", str(images)))


def test_flipping_is_the_mean_of_both_probabilities(run: Run):
    restored = Restored(run.folder)
    pixels = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    batch, mirrored = (Batch(one, torch.zeros(3), torch.arange(3), 3) for one in (pixels, pixels.flip(3)))
    wanted = (restored.logits(batch).softmax(1) + restored.logits(mirrored).softmax(1)) / 2
    torch.testing.assert_close(restored.logits_flipped(batch).exp(), wanted)
    torch.testing.assert_close(restored.logits_flipped(mirrored), restored.logits_flipped(batch))


def test_float16_weights_are_judged_in_float32_where_float16_is_slow(tmp_path: Path):
    saved = save_run(tmp_path, DIGITS, "precision=O3", "precision.unsuited=slow")
    restored = Restored(saved.folder, ["precision.unsuited=stop"], device=torch.device("cpu"))
    assert {held.dtype for held in restored.model.parameters()} == {torch.float32}
    logits = restored.logits(Batch(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(2), torch.arange(2), 2))
    assert logits.dtype == torch.float32 and logits.isfinite().all()


def test_classes_in_another_order_or_fewer_keep_their_meaning(run: Run, tmp_path: Path):
    class_folders(tmp_path, {"bee": 2, "cat": 4})
    val = Restored(run.folder, [f"data.path={tmp_path}"]).validation()
    assert val.labels.tolist() == [1, 2, 2]


def test_classes_of_another_data_set(run: Run, tmp_path: Path):
    class_folders(tmp_path, {"bea": 2, "cat": 2, "dog": 2})
    with pytest.raises(UsageError) as caught:
        Restored(run.folder, [f"data.path={tmp_path}"]).evaluate()
    assert str(caught.value) == (
        "data: class 'bea' of the images is none of the checkpoint's classes (nor are 1 others); did you mean 'bee'? "
        "(known: ant, bee, cat)"
    )


def test_numbers_are_no_names(tmp_path: Path):
    """Records without a list of classes say how many there are."""
    for most, name in ((3, "few"), (5, "more")):
        for split in ("train", "val"):
            labels: list = [number % most for number in range(6)]
            write_rec(tmp_path / name / f"{split}.rec", [jpeg(number) for number in range(6)], labels)
    few = FOLDER.replace("folder, path: PATH, val_share: 0.5", f"recordio, path: {tmp_path / 'few'}")
    run = save_run(tmp_path / "run", few)
    assert Restored(run.folder).evaluate().count == 6
    with pytest.raises(UsageError, match="data: label 4 of the images is none of the checkpoint's 3 classes"):
        Restored(run.folder, [f"data.path={tmp_path / 'more'}"]).evaluate()


def test_images_of_another_form(tmp_path: Path):
    run = save_run(tmp_path / "run")
    with pytest.raises(UsageError, match=r"images of 3 x 32 x 32, the checkpoint was trained on 1 x 8 x 8"):
        Restored(run.folder, ["data=synthetic"]).evaluate()
    with pytest.raises(RecipeError, match=r"command line: data.limt: unknown key; did you mean 'limit'"):
        Restored(run.folder, ["data.limt=8"])


def test_a_best_checkpoint_that_is_replaced_while_it_is_read(run: Run, tmp_path: Path, monkeypatch):
    """As a run that goes on does it: save, mark, prune."""
    moving = Run(tmp_path / "moving")
    shutil.copytree(run.folder, moving.folder)
    read, times = checkpoint.read, []

    def replaced(path: Path, **options: bool) -> checkpoint.Checkpoint:
        times.append(path)
        if len(times) == 1:
            moving.checkpoint(5).rename(moving.checkpoint(9))
            moving.write_best(9, 0.2)
        return read(path, **options)

    monkeypatch.setattr(checkpoint, "read", replaced)
    assert Restored(moving.folder).path == moving.checkpoint(9) and len(times) == 2


def test_what_cannot_be_restored(run: Run, tmp_path: Path):
    with pytest.raises(UsageError, match="no such folder"):
        Restored(tmp_path / "no")
    with pytest.raises(UsageError, match="neither a checkpoint nor a run folder"):
        Restored(tmp_path)
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(UsageError, match="this run has saved no checkpoint yet"):
        Restored(tmp_path)
    damaged = tmp_path / "damaged"
    shutil.copytree(run.checkpoint(5), damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(ShoalError, match=r"damaged checkpoint: the checksum of model\.safetensors is wrong"):
        Restored(damaged)
    told = json.loads((damaged / "manifest.json").read_text())
    (damaged / "manifest.json").write_text(json.dumps({**told, "format": 99}))
    with pytest.raises(ShoalError, match="format 99, this Shoal reads 1"):
        Restored(damaged)


def test_outputs_without_a_class_are_called_by_their_number(tmp_path: Path, images: Path):
    recipe = FOLDER.replace("PATH", str(images)).replace("cifar-resnet8", "{name: cifar-resnet8, classes: 5}")
    restored = Restored(save_run(tmp_path / "run", recipe).folder)
    assert restored.classes == ("ant", "bee", "cat", "3", "4")
    assert np.unique(restored.validation().labels).tolist() == [0, 1, 2]
