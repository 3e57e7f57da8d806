"""Finds the recipe a person means: a file by its path, or a built-in recipe by its name."""

from __future__ import annotations

from pathlib import Path

from shoal.base.errors import UsageError, did_you_mean

FILES = Path(__file__).parent / "files"


def built_in() -> list[str]:
    """Names of the recipes that come with Shoal."""
    return sorted(path.stem for path in FILES.glob("*.yaml"))


def find(reference: str) -> Path:
    """The file `reference` names. UsageError lists the built-in recipes; nothing heavy is imported on the way to it."""
    path = Path(reference)
    if path.suffix in (".yaml", ".yml") or "/" in reference:
        if path.is_dir() and (path / "recipe.yaml").exists():
            return path / "recipe.yaml"
        if not path.is_file():
            raise UsageError(f"recipe {reference}: {'is a folder' if path.is_dir() else 'no such file'}")
        return path
    shipped = FILES / f"{reference}.yaml"
    if not shipped.is_file():
        raise UsageError(
            f"no recipe called '{reference}'{did_you_mean(reference, built_in())}, nor a path to a .yaml file"
        )
    return shipped
