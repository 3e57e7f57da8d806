"""Fitting: what of a checkpoint fits the training that goes on from it, and what is worth a note."""

from __future__ import annotations

from typing import Any

import torch

from shoal.base.errors import ShoalError
from shoal.recipe.recipe import Recipe
from shoal.strategies import Rig
from shoal.train.checkpoint import Checkpoint
from shoal.train.progress import Progress


def check_weights(saved: Checkpoint, recipe: Recipe) -> list[str]:
    """Notes on the weights to go on from. ShoalError: nobody can go on from them."""
    for name, tensor in saved.model.items():
        if not tensor.isfinite().all():
            raise ShoalError(f"{saved.path}: {name} is not finite; go on from an earlier checkpoint")
    halves = [name for name, tensor in saved.model.items() if tensor.dtype == torch.float16]
    if halves and recipe.precision.dtype() != torch.float16:  # type: ignore[attr-defined]
        was = saved.manifest["recipe"]["precision"]["name"]
        return [f"precision was {was}: it saved float16 weights, from which float32 ones begin, without lost digits"]
    return []


def optimizer_state(
    saved: Checkpoint, progress: Progress, recipe: Recipe, rig: Rig
) -> tuple[list[str], dict[str, Any] | None]:
    """(notes, the optimizer's state) where it fits the rig's optimizer, else none and the reason as a note."""
    held, name = saved.state["optimizer"], recipe.optim.name
    if progress.optim != name:
        return [f"optim was {progress.optim}, now {name}: it begins without the state of the old one"], None
    mine = rig.state_dict()["optimizer"]
    if [len(g["params"]) for g in held["param_groups"]] != [len(g["params"]) for g in mine["param_groups"]]:
        return [f"optim: {name} now groups parameters in another way; it begins without its old state"], None
    return [], held
