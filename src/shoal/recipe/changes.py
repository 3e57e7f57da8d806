"""Changes: what differs between the recipe of a run and the one it is to go on with, and whether that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.base.errors import UsageError
from shoal.recipe import yaml12
from shoal.recipe.load import flat, parse
from shoal.recipe.part import kind
from shoal.recipe.recipe import FREE_KEYS, Recipe


def differences(before: dict[str, Any], where: str, recipe: Recipe) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (then, now), of each that differs; before, where: as for `check_changes`. A key that recipes did
    not have then has its default."""
    old, new = flat(parse(yaml12.write(before), f"{where} (its recipe)").recipe), flat(recipe)
    pairs = {key: (old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys())}
    return {key: (then, now) for key, (then, now) in pairs.items() if then != now}


def check_changes(before: dict[str, Any], where: str, recipe: Recipe, allow: Sequence[str]) -> None:
    """before: the resolved recipe that a checkpoint holds; where: the checkpoint, for the message.

    UsageError lists every changed key that is neither free nor allowed.
    """
    changed = differences(before, where, recipe)
    # When validations come decides when a desired accuracy is seen, and so where the training ends.
    free = FREE_KEYS if recipe.desired_accuracy is None else FREE_KEYS - {"eval_every", "data.eval_batch"}
    name = "data.decoder.name"
    if not all(getattr(kind("decoders", decoder or "auto"), "EXACT", True) for decoder in changed.get(name, ())):
        free = free - {name}  # other pixels are another training
    allowed = {key for key in changed if any(key == word or key.startswith(f"{word}.") for word in allow)}
    refused = [key for key in changed if key not in free | allowed]
    if refused:
        lines = [f"  {key}: {then} -> {now}" for key, (then, now) in changed.items() if key in refused]
        hint = " ".join(f"--allow {key}" for key in refused)
        told = [f"shoal: the recipe differs from that of {where}:", *lines]
        raise UsageError(
            "\n".join([*told, f"  to train on with the changes: {hint}; else choose another --run folder"])
        )
