"""Finds the recipe a person means: a file by its path, or a built-in recipe by its name."""

from __future__ import annotations

from itertools import takewhile
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
            raise UsageError(f"recipe {reference}: {'no recipe.yaml in it' if path.is_dir() else 'no such file'}")
        return path
    shipped = FILES / f"{reference}.yaml"
    if not shipped.is_file():
        here = [name for name in (f"./{reference}.yaml", f"./{reference}/recipe.yaml") if Path(name).is_file()]
        own = f"or did you mean the file {here[0]}?" if here else "a recipe of your own is called by its path"
        raise UsageError(f"no recipe called '{reference}'{did_you_mean(reference, built_in())}; {own}")
    return shipped


def opening(path: Path) -> str:
    """The comment a recipe file begins with, as it stands there; a recipe is a document, and this is its first page."""
    with open(path, encoding="utf-8") as file:
        return "".join(takewhile(lambda line: line.startswith("#"), file))
