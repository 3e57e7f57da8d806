"""Changes: what differs between the recipe of a run and the one it is to go on with, and whether that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.base.errors import UsageError
from shoal.recipe import yaml12
from shoal.recipe.load import flat, parse
from shoal.recipe.part import kind
from shoal.recipe.recipe import FREE_KEYS, Recipe


def check_changes(before: dict[str, Any], where: str, recipe: Recipe, allow: Sequence[str]) -> None:
    """before: the resolved recipe that a checkpoint holds; where: the checkpoint, for the message.

    UsageError lists every changed key that is neither free nor allowed.
    """
    old, new = flat(parse(yaml12.write(before), f"{where} (its recipe)").recipe), flat(recipe)
    # When validations come decides when a desired accuracy is seen, and so where the training ends.
    free = FREE_KEYS if recipe.desired_accuracy is None else FREE_KEYS - {"eval_every", "data.eval_batch"}
    name = "data.decoder.name"
    if not all(getattr(kind("decoders", flats.get(name, "auto")), "EXACT", True) for flats in (old, new)):
        free = free - {name}  # other pixels are another training
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key) and key not in free]
    refused = [key for key in changed if not any(key == word or key.startswith(f"{word}.") for word in allow)]
    if refused:
        lines = [f"  {key}: {old.get(key)} -> {new.get(key)}" for key in refused]
        hint = " ".join(f"--allow {key}" for key in refused)
        told = [f"shoal: the recipe differs from that of {where}:", *lines]
        raise UsageError(
            "\n".join([*told, f"  to train on with the changes: {hint}; else choose another --run folder"])
        )
