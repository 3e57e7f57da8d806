"""The recipe that a checkpoint was trained by, out of its manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.recipe import yaml12
from shoal.recipe.load import parse
from shoal.recipe.recipe import Recipe


def recipe_of(manifest: Mapping[str, Any], path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """path: the checkpoint's folder, for messages. RecipeError: overrides, or a recipe, that this Shoal cannot read."""
    return parse(yaml12.write(manifest["recipe"]), f"{path} (its recipe)", overrides).recipe
