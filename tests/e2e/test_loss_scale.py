"""A loss scale from the command line to its page: told, logged, saved, gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from program import Finished, Result
from safetensors.torch import load_file
from warm import warm

from shoal.base.run import Run
from shoal.train import checkpoint

TINY = """\
data: {name: synthetic, images: 8, classes: 3, channels: 1, size: 8}
model: digits-cnn
optim: {name: sgd, lr: 0.05, momentum: 0.9}
schedule: constant
batch: 4
shards: 2
length: 2ep
log_every: 1st
"""
SLOW = "precision.unsuited=slow"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def scaled(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Two workers; the scale begins where every step overflows."""
    base = tmp_path_factory.mktemp("scaled")
    words = ("--opt-level", "O2", SLOW, "precision.init_scale=16777216", "length=1ep")
    return Finished(base / "run", warm(base, "train", recipe, *words, "--run", base / "run", n=2))


def of_kind(folder: Path, kind: str) -> list[dict]:
    return [event for event in Run(folder).read_metrics() if event["event"] == kind]


def test_the_line_of_old_is_printed_and_the_event_is_logged(scaled: Finished) -> None:
    assert scaled.result.code == 0, scaled.result
    for scale in ("8388608.0", "4194304.0"):
        line = f"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {scale}"
        assert scaled.result.err.count(line) == 1
    assert [(e["loss_scale"], e["skipped"]) for e in of_kind(scaled.folder, "skip")] == [(2.0**23, 1), (2.0**22, 2)]
    assert of_kind(scaled.folder, "end")[0]["skipped"] == 2


def test_a_resumed_run_goes_on_with_its_scale(scaled: Finished, recipe: Path) -> None:
    base = scaled.folder.parent
    state = torch.load(Run(scaled.folder).checkpoint(2) / "state.pt", weights_only=True)
    assert state["scaler"] == {"scale": 2.0**22, "dynamic": True, "clean": 0, "in_row": 2, "skipped": 2}
    words = ("precision=O2", SLOW, "precision.init_scale=16777216", "length=2ep", "--allow", "length")
    result = warm(base, "train", recipe, *words, "--run", scaled.folder)
    assert result.code == 0, result
    skips = [event["loss_scale"] for event in of_kind(scaled.folder, "skip")]
    assert skips[:3] == [2.0**23, 2.0**22, 2.0**21]
    assert of_kind(scaled.folder, "end")[-1]["skipped"] == len(skips)


def test_without_the_hardware(recipe: Path, tmp_path: Path) -> None:
    refused = warm(tmp_path / "a", "train", recipe, "precision=O1", "--run", tmp_path / "a" / "run")
    assert refused.code == 2 and "no fast float16" in refused.err and "precision.unsuited=fp32" in refused.err
    fallen = warm(
        tmp_path / "b", "train", recipe, "precision=O1", "precision.unsuited=fp32", "--run", tmp_path / "b" / "run"
    )
    assert fallen.code == 0 and "fell back to fp32" in fallen.err
    weights = load_file(Run(tmp_path / "b" / "run").checkpoint(4) / "model.safetensors")
    assert all(tensor.dtype in (torch.float32, torch.int64) for tensor in weights.values())


def test_weights_that_o3_saved_and_weights_that_are_not_finite(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert warm(tmp_path, "train", recipe, "length=1ep", "--run", folder).code == 0
    saved = checkpoint.read(path := Run(folder).checkpoint(2))
    name = next(iter(saved.model))

    def go_on_from(model: dict[str, torch.Tensor]) -> Result:
        saved.manifest["recipe"]["precision"] |= {"name": "O3"}
        checkpoint.save(path, model=model, ema=None, state=saved.state, manifest=saved.manifest)
        allowed = ("--allow", "length", "--allow", "precision")
        return warm(tmp_path, "train", recipe, "length=2ep", *allowed, "--run", folder)

    broken = go_on_from(saved.model | {name: torch.full_like(saved.model[name], torch.nan)})
    assert broken.code == 1 and f"{name} is not finite" in broken.err, broken
    halved = go_on_from({key: held.half() if held.is_floating_point() else held for key, held in saved.model.items()})
    assert halved.code == 0 and "precision was O3: it saved float16 weights" in halved.err, halved
