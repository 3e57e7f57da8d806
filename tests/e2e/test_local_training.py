"""Local SGD and compressed ddp through the whole command: they validate what they save, and go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file
from warm import warm

from shoal.base.run import Run

RECIPE = """\
data: {name: digits, limit: 120, eval_batch: 40}
model: digits-cnn
optim: {name: sgd, lr: 0.05, momentum: 0.9}
schedule: constant
batch: 20
shards: 4
length: 2ep
log_every: 2st
"""


def of_kind(folder: Path, kind: str) -> list[dict]:
    return [event for event in Run(folder).read_metrics() if event["event"] == kind]


@pytest.mark.parametrize("strategy", ["local_sgd:every=4,outer_lr=0.7,outer_momentum=0.5", "ddp:compress=2bit"])
def test_two_workers_train_stop_and_go_on(tmp_path: Path, strategy: str) -> None:
    path, folder = tmp_path / "small.yaml", tmp_path / "run"
    path.write_text(RECIPE)
    words = ("train", path, f"strategy={strategy},threads=1", "--run", folder)
    first = warm(tmp_path, *words, "length=1ep", n=2)
    assert first.code == 0, first
    went_on = warm(tmp_path, *words, "--allow", "length", n=2)
    assert went_on.code == 0, went_on
    (_, epoch) = of_kind(folder, "epoch")
    assert epoch["images"] == 240
    assert any(event["bytes_per_step"] > 0 for event in of_kind(folder, "train"))
    validated = of_kind(folder, "val")[-1]
    weights = Run(folder).checkpoint(12)
    assert all(tensor.isfinite().all() for tensor in load_file(weights / "model.safetensors").values())
    again = warm(tmp_path, "eval", weights, "--json")
    assert again.code == 0 and f'"correct1": {validated["correct1"]}' in again.out, again
