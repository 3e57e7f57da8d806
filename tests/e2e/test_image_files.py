"""Image files that are decoded while training goes on: the promises hold for them, too, and a bad one is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from figures import bits, figures, wait_until
from warm import Warm, warm

from small_images import class_folders

RECIPE = """\
data: {name: folder, path: images, threads: 2, augment: {size: 24, mirror: true}, on_bad: skip, eval_batch: 16}
model: cifar-resnet8
optim: {name: sgd, lr: 0.05, momentum: 0.9}
batch: 16
shards: 4
length: 3ep
ema: {half_life: 0.5ep}
strategy: {name: ddp, deterministic: true}
save_every: 1st
log_every: 2st
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for split in ("train", "val"):
        class_folders(folder / "images" / split, {"ant": 20, "bee": 20, "cat": 17})
    (folder / "images/train/ant/003.jpg").write_bytes(b"")
    (folder / "recipe.yaml").write_text(RECIPE.replace("images", str(folder / "images")))
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def one(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("one")
    result = warm(base, "train", recipe, "--run", base / "run")
    assert result.code == 0, result
    told = re.findall(r"^WARNING: .*", result.err, re.MULTILINE)
    assert len(told) == 1 and told[0].endswith("train/ant/003.jpg is empty (0 bytes); skipped (1 so far)")
    return base / "run"


@pytest.mark.parametrize(("n", "threads"), [(1, 0), (2, 1), (3, 4)])
def test_any_number_of_workers_and_threads_trains_the_same_bits(
    n: int, threads: int, recipe: Path, one: Path, tmp_path: Path
) -> None:
    result = warm(tmp_path, "train", recipe, f"data.threads={threads}", "--run", tmp_path / "run", n=n)
    assert result.code == 0, result
    assert bits(tmp_path / "run") == bits(one) and figures(tmp_path / "run") == figures(one)


def test_killed_and_resumed(recipe: Path, one: Path, tmp_path: Path) -> None:
    with Warm(tmp_path, "train", recipe, "--run", tmp_path / "run"):
        wait_until(tmp_path / "run", 4)
    result = warm(tmp_path, "train", recipe, "--run", tmp_path / "run", n=2)
    assert result.code == 0, result
    assert bits(tmp_path / "run") == bits(one) and figures(tmp_path / "run") == figures(one)


def test_a_bad_image_ends_the_training_with_its_name(recipe: Path, tmp_path: Path) -> None:
    result = warm(tmp_path, "train", recipe, "data.on_bad=stop", "--run", tmp_path / "run")
    assert result.code == 1 and "Traceback" not in result.err
    assert re.search(
        r"^ERROR: .*train/ant/003\.jpg is empty \(0 bytes\); mend or remove it, or ", result.err, re.MULTILINE
    )


def test_what_images_of_several_sizes_need(recipe: Path, tmp_path: Path) -> None:
    result = warm(tmp_path, "train", recipe, "data.augment.size=null", "--run", tmp_path / "run")
    assert result.code == 2
    assert "ERROR: data.augment: images of several sizes need data.augment.size (random parts" in result.err
