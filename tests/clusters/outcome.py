"""What came of a training, to be compared with another one's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.base.run import Run

TIMES = {"seconds", "images_per_s", "wait_share", "trained_s", "bytes_per_step"}


def what_came(folder: Path) -> dict[str, Any]:
    """The state's bytes and the figures without times."""
    import torch

    run = Run(folder)
    path = run.checkpoint(run.steps_saved()[-1])
    optimizer = torch.load(path / "state.pt", weights_only=True)["optimizer"]["state"]
    figures = [event for event in run.read_metrics() if event["event"] in ("train", "epoch", "val")]
    return {
        "model": (path / "model.safetensors").read_bytes(),
        "optimizer": [tensor.numpy().tobytes() for state in optimizer.values() for tensor in state.values()
                      if isinstance(tensor, torch.Tensor)],
        "figures": [{key: value for key, value in event.items() if key not in TIMES} for event in figures],
    }  # fmt: skip
