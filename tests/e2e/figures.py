"""What a training came to, in a form that can be compared: the state's bytes, the figures without their times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from program import wait_for
from safetensors.torch import load_file

from shoal.base.run import Run

RECIPE = """\
# All state there is matters: statistics, momentum, an average, dropout, mixup; batches that shards cut unevenly.
data:
  name: digits
  limit: 1190
  augment: {pad: 1, affine: {rotate: 5, scale: [0.9, 1.1]}, colour: {contrast: 0.2}, erase: {paint: noise}}
  eval_batch: 100
model: {name: digits-cnn, drop: 0.3}
task: {name: classify, smoothing: 0.05, mixup: 0.4}
optim: {name: sgd, lr: 0.1, momentum: 0.9, nesterov: true, weight_decay: 5e-4}
schedule: {name: one_cycle, peak_at: 0.3}
batch: 40
shards: 6
length: 2ep
ema: {half_life: 0.25ep}
strategy: {name: ddp, deterministic: true}
seed: 7
eval_every: 0.5ep
save_every: 4st
log_every: 3st
"""
STEPS, STEPS_PER_EPOCH = 60, 30
_TIMES = {"seconds", "images_per_s", "wait_share", "trained_s", "bytes_per_step"}


def bits(folder: Path) -> dict[str, Any]:
    """The newest checkpoint's files and tensors as bytes; which step it is, which are kept, and which is the best."""
    run = Run(folder)
    path = run.checkpoint(run.steps_saved()[-1])
    state = torch.load(path / "state.pt", weights_only=True)
    return {
        "kept": run.steps_saved(),
        "best": run.read_best(),
        "model": (path / "model.safetensors").read_bytes(),
        "ema": (path / "ema.safetensors").read_bytes(),
        "optimizer": _bytes(state["optimizer"]),
        "meters": _bytes(state["meters"]),
        "predictions": _predictions(run),
    }


def _predictions(run: Run) -> bytes | None:
    """Of the best validation, where its checkpoint is this run's own."""
    best = run.read_best()
    path = run.predictions(int(best["step"])) if best else None
    return path.read_bytes() if path is not None and path.exists() else None


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Tensors of the newest checkpoint by name, the averaged ones too."""
    run = Run(folder)
    path = run.checkpoint(run.steps_saved()[-1])
    average = {f"average of {name}": tensor for name, tensor in load_file(path / "ema.safetensors").items()}
    return load_file(path / "model.safetensors") | average


def figures(folder: Path) -> list[dict[str, Any]]:
    """Train, epoch and val events, all but their times and speeds."""
    events = Run(folder).read_metrics()
    told = [event for event in events if event["event"] in ("train", "epoch", "val")]
    return [{key: value for key, value in event.items() if key not in _TIMES} for event in told]


def reached(folder: Path) -> int:
    """The last step that was reported."""
    return max((event["step"] for event in Run(folder).read_metrics()), default=0)


def wait_until(folder: Path, step: int) -> int:
    """Waits until `step` was trained; returns the step reported last."""
    return wait_for(lambda: reached(folder) if reached(folder) >= step else None, f"step {step} in {folder}")


def _bytes(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: _bytes(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_bytes(item) for item in value]
    return value
