"""`shoal data show`: what lies at a path, in words and as a picture."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.base.errors import UsageError
from shoal.cli.new_file import NewFile

if TYPE_CHECKING:
    from shoal.data.look import Found, Part

_RECIPES = {"cifar10": "cifar10-resnet8"}
"""Source -> the recipe whose augmentation is drawn, where none is named."""
_FIRST = 10
"""Classes shown one by one; the rest are summed up."""


@click.command("show")
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, all classes.")
@click.option("--picture", type=NewFile(), help="Draw training images as they are stored, in five epochs, and as "
              "validation sees them (PNG).")  # fmt: skip
@click.option("--images", type=click.IntRange(1, 100), default=8, show_default=True, help="Drawn there.")
@click.option("--recipe", metavar="RECIPE",
              help="Whose augmentation is drawn. [default: own-images; of CIFAR-10 cifar10-resnet8]")  # fmt: skip
def show(
    path: Path, overrides: tuple[str, ...], as_json: bool, picture: Path | None, images: int, recipe: str | None
) -> None:
    """Say what lies at PATH as Shoal reads it; ends with 1 where something is wrong with it.

    PATH is CIFAR-10 in any form, a folder of class folders (below train and val, or not), a .rec or a folder of two, or
    a .lst. No image is decoded, but for a --picture, in which KEY=VALUE change the recipe, as in data.augment.size=96.
    """
    from shoal.data.look import look

    if (overrides or recipe) and not picture:
        raise UsageError(f"{overrides[0] if overrides else '--recipe'}: is for the images of a --picture FILE")
    found = look(path)
    click.echo(_json(found) if as_json else _text(found))
    if found.wrong:
        sys.exit(1)
    if picture:
        _draw(found, picture, images, recipe, overrides)


def _draw(found: Found, picture: Path, images: int, recipe: str | None, overrides: tuple[str, ...]) -> None:
    from shoal.base.files import write_whole
    from shoal.recipe.load import load
    from shoal.recipe.part import kind

    if found.data is None:
        raise UsageError(f"--picture: {found.path} holds no training images")
    options = {key: value for key, value in found.data.items() if key != "name"}
    source = kind("sources", found.data["name"])
    loaded = load(recipe or _RECIPES.get(found.data["name"], "own-images"), overrides).recipe
    from shoal.report.views import views  # imports torch, which takes seconds

    write_whole(picture, views(source(**options, augment=loaded.data.augment), images, loaded.seed))  # type: ignore


def _text(found: Found) -> str:
    from shoal.data.look import NONE
    from shoal.report.tables import table

    blocks = [f"{found.path}: {found.form}"]
    if found.parts:
        rows = [
            (part.name, f"{part.images:,}", f"{len(part.classes.keys() - {NONE}):,}", part.path) for part in found.parts
        ]
        blocks += [table(rows, ("split", "images", "classes", "path")), class_table(found.parts)]
    blocks += [f"WRONG: {line}" for line in found.wrong]
    if found.mend:
        blocks.append("\n".join(["To mend it:", *(f"  {line}" for line in found.mend)]))
    if found.data:
        ready = "A recipe reads it with:" if not found.wrong else "Once it is mended, a recipe reads it with:"
        blocks.append("\n".join([ready, *(f"  {line}" for line in _yaml(found.data).splitlines())]))
        if found.data["name"] == "folder" and not found.wrong:
            blocks.append(f"To train on it as it is:\n  shoal train own-images data.path={shlex.quote(found.path)}")
    return "\n\n".join(blocks)


def class_table(parts: list[Part]) -> str:
    """Images of each class by split: the first classes, and the rest summed up."""
    from shoal.report.tables import table

    names = list(dict.fromkeys(name for part in parts for name in part.classes))
    shown = names if len(names) <= _FIRST + 2 else names[:_FIRST]
    rows: list[tuple[object, ...]] = [(name, *(part.classes.get(name, 0) for part in parts)) for name in shown]
    if rest := names[len(shown) :]:
        sums = (_span([part.classes.get(name, 0) for name in rest]) for part in parts)
        rows.append((f"… {len(rest):,} more", *sums))
    return table(rows, ("class", *(part.name for part in parts)))


def _span(counts: list[int]) -> str:
    least = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    return f"{sum(counts):,} ({least} each)"


def _yaml(data: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump({"data": data}, sort_keys=False, allow_unicode=True).rstrip()


def _json(found: Found) -> str:
    parts = [
        {"name": part.name, "path": part.path, "images": part.images, "classes": part.classes} for part in found.parts
    ]
    told = {"path": found.path, "form": found.form, "splits": parts, "wrong": found.wrong, "mend": found.mend}
    return json.dumps({**told, "data": found.data}, indent=2, ensure_ascii=False)
