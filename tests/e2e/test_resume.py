"""Going on with something changed: what was asked for happens, and what cannot be is refused before harm is done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from figures import STEPS, figures, weights
from safetensors.torch import load_file
from warm import warm

from shoal.base.run import Run


@pytest.fixture
def copy(reference: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(reference, tmp_path / "run"))


def _options(run: Path) -> dict:
    state = torch.load(Run(run).checkpoint(Run(run).steps_saved()[-1]) / "state.pt", weights_only=True)
    return state["optimizer"]["param_groups"][0]


def test_new_options_of_the_optimizer_are_taken(copy: Path, recipe: Path, tmp_path: Path) -> None:
    change = ("optim.momentum=0.5", "optim.weight_decay=0.01", f"length={STEPS + 2}st")
    result = warm(tmp_path, "train", recipe, *change, "--run", copy, "--allow", "optim", "--allow", "length")
    assert result.code == 0, result
    assert (_options(copy)["momentum"], _options(copy)["weight_decay"]) == (0.5, 0.01)


def test_another_optimizer_begins_anew_and_says_so(copy: Path, recipe: Path, tmp_path: Path) -> None:
    change = ("optim={name: adamw, lr: 0.001}", f"length={STEPS + 2}st")
    result = warm(tmp_path, "train", recipe, *change, "--run", copy, "--allow", "optim", "--allow", "length")
    assert result.code == 0, result
    assert "WARNING: optim was sgd, now adamw: it begins without the state of the old one" in result.err
    assert "betas" in _options(copy)


def test_a_refused_resume_leaves_the_run_as_it_was(copy: Path, recipe: Path, tmp_path: Path) -> None:
    other = ("train", recipe, "model=cifar-resnet8", "--run", copy, "--allow", "model")
    assert warm(tmp_path, *other).code == 1
    result = warm(tmp_path, "train", recipe, "--run", copy)
    assert result.code == 0, result


def test_other_batches_want_a_new_run(copy: Path, recipe: Path, tmp_path: Path) -> None:
    result = warm(tmp_path, "train", recipe, "batch=12", "--run", copy, "--allow", "batch")
    assert result.code == 2, result
    assert "--run NEW --resume CHECKPOINT" in result.err


def test_a_finished_checkpoint_in_a_new_run_is_a_whole_run(reference: Path, recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    result = warm(tmp_path, "train", recipe, "--run", folder, "--resume", Run(reference).checkpoint(STEPS))
    assert result.code == 0, result
    assert Run(folder).steps_saved() == [STEPS]
    assert all(torch.equal(a, b) for a, b in zip(weights(folder).values(), weights(reference).values(), strict=True))


def test_a_run_is_resumed_from_its_newest_not_its_best(reference: Path, recipe: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(reference, source)
    first = Run(source).steps_saved()[0]
    Run(source).write_best(first, 1.0)
    result = warm(tmp_path, "train", recipe, "--run", tmp_path / "new", "--resume", source)
    assert result.code == 0, result
    assert f"Resumed  from step {STEPS}" in result.err


def test_the_recipe_is_compared_with_the_checkpoints_own(reference: Path, recipe: Path, tmp_path: Path) -> None:
    """Also where the checkpoint was carried away from its run."""
    alone = tmp_path / "carried"
    shutil.copytree(Run(reference).checkpoint(STEPS), alone)
    result = warm(tmp_path, "train", recipe, "seed=8", "--run", tmp_path / "new", "--resume", alone)
    assert result.code == 2, result
    assert f"seed: {json.loads((alone / 'manifest.json').read_text())['recipe']['seed']} -> 8" in result.err


def test_a_checkpoint_just_saved_outlives_damaged_later_ones(copy: Path, recipe: Path, tmp_path: Path) -> None:
    *_, before, newest = Run(copy).steps_saved()
    with open(Run(copy).checkpoint(newest) / "model.safetensors", "ab") as file:
        file.write(b"x")
    result = warm(
        tmp_path, "train", recipe, "keep_last=1", f"length={before + 1}st", "--run", copy, "--allow", "length"
    )
    assert result.code == 0, result
    assert Run(copy).steps_saved()[-1] == before + 1
    assert (copy / "checkpoints" / f"step-{newest:08d}.damaged").is_dir()


def test_steps_that_are_skipped_leave_figures_that_can_be_read(recipe: Path, tmp_path: Path) -> None:
    change = ("precision.nonfinite=skip", "optim.lr=1e12", "schedule=constant", "length=12st", "ema=null")
    result = warm(tmp_path, "train", recipe, *change, "--run", tmp_path / "run")
    assert "Traceback" not in result.err, result
    assert figures(tmp_path / "run")


def test_functional_dropout_belongs_to_shards_under_sync_norm(recipe: Path, tmp_path: Path) -> None:
    """timm's nets call torch's function; any number of workers must draw the same."""
    net = ("model={name: mobilenetv3_small_050, drop: 0.5}", "norm=sync", "precision=fp64", "length=2st", "ema=null")
    made = []
    for n in (1, 2):
        folder = tmp_path / str(n)
        result = warm(tmp_path, "train", recipe, *net, "strategy.deterministic=false", "--run", folder, n=n)
        assert result.code == 0, result
        made.append(load_file(Run(folder).checkpoint(2) / "model.safetensors"))
    worst = max(float((a - b).abs().max()) for a, b in zip(*(state.values() for state in made), strict=True))
    assert worst < 1e-10
