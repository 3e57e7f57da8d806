"""Validating a checkpoint outside a training: figures as JSON values, from any number of workers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.base.world import World
from shoal.report.confusion import Confusion
from shoal.step.gang import join
from shoal.train import checkpoint
from shoal.train.machine import device_for
from shoal.train.restored import Restored


def validate(
    path: Path, overrides: Sequence[str], world: World | None, *, raw: bool, tta: str | None
) -> dict[str, Any] | None:
    """What worker 0 found; None at the others. Every worker of `world` calls it.

    path: a checkpoint, or a run, whose best is taken: worker 0's, should the run go on meanwhile.
    """
    device = device_for(world)
    listen = os.environ.get("SHOAL_LISTEN_FD")
    gang = join(world, device, listen_fd=int(listen) if listen else None)
    try:
        chosen = gang.broadcast_bytes(os.fsencode(checkpoint.resolve(path)) if gang.rank == 0 else None)
        restored = Restored(Path(os.fsdecode(chosen)), overrides, raw=raw, device=device)
        score, predictions = restored.judge(gang, logits_of=restored.logits_flipped if tta else restored.logits)
        gang.barrier()
    finally:
        gang.close()
    if gang.rank:
        return None
    return {
        "checkpoint": str(restored.path),
        "step": restored.manifest["step"],
        "averaged": restored.averaged,
        "tta": tta,
        "outputs": len(restored.classes),
        "loss": score.loss,
        "top1": score.top1,
        "top5": score.top5,
        "count": score.count,
        "correct1": score.correct1,
        "correct5": score.correct5,
        "classes": [
            {
                "class": row.name,
                "count": row.count,
                "correct1": row.correct1,
                "correct5": row.correct5,
                "top1": row.top1,
                "top5": row.top5,
                "mistaken_for": row.mostly or None,
                "mistakes": row.mistaken,
            }
            for row in Confusion.of(predictions).by_class()
        ],
    }
