"""`shoal list`: what comes with Shoal: recipes, models, and the parts of each seam with all their options; and runs."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from shoal.base.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from shoal.recipe.part import Options, Part

KINDS = {
    "recipes": "whole training jobs (`shoal train NAME`)",
    "models": "what can be trained (recipe key `model`)",
    "sources": "where images come from (recipe key `data`)",
    "decoders": "what makes pixels of JPEGs (recipe key `data.decoder`)",
    "policies": "operations on images, chosen at random (recipe key `data.augment.policy`)",
    "tasks": "how a batch becomes a loss (recipe key `task`)",
    "optims": "how gradients become steps (recipe key `optim`)",
    "schedules": "the learning rate over images seen (recipe key `schedule`)",
    "precisions": "number formats (recipe key `precision`)",
    "strategies": "how workers agree (recipe key `strategy`)",
    "launchers": "where workers run (`shoal train RECIPE --launcher NAME`)",
    "runs": "trainings below a folder, the newest first (`shoal list runs [FOLDER]`)",
}


@click.command("list", short_help="List recipes, models, the parts of a seam, or runs.")
@click.argument("what", required=False)
@click.argument("name", required=False)
def command(what: str | None, name: str | None) -> None:
    """List what comes with Shoal; WHAT alone says of what kind, NAME picks one.

    \b
    shoal list                  the kinds of things there are
    shoal list optims           all optimizers, with every option, its type and its default
    shoal list optims sgd       this one alone
    shoal list runs FOLDER      trainings below a folder (here, where none is named), with their results
    """
    if what is None:
        lines = _kinds()
    elif what not in KINDS:
        raise UsageError(f"nothing called '{what}' to list{did_you_mean(what, KINDS)}")
    elif what in ("recipes", "models"):
        if name is not None:
            instead = f"shoal show {name}" if what == "recipes" else f"shoal show RECIPE model={name}"
            raise UsageError(f"shoal list {what} takes no name; to see one: {instead}")
        lines = _recipes() if what == "recipes" else _models()
    elif what == "runs":
        lines = _runs(name or ".")
    else:
        lines = _parts(what, name)
    for line in lines:
        click.echo(line)


def _kinds() -> Iterator[str]:
    for kind, text in KINDS.items():
        yield f"{kind:<12}{text}"
    yield ""
    yield "More of each: shoal list KIND"


def _recipes() -> Iterator[str]:
    from shoal.recipe.find import FILES, built_in, opening

    wide = max(map(len, built_in())) + 2
    for name in built_in():
        comment = [line.removeprefix("#").strip() for line in opening(FILES / f"{name}.yaml").splitlines()]
        title = " ".join(comment[: comment.index("")] if "" in comment else comment)
        yield _wrapped(title, first=f"{name:<{wide}}", rest=" " * wide)
    yield ""
    yield "All of one: shoal show NAME"


def _models() -> Iterator[str]:
    from shoal.models import Model, names

    yield from names()
    yield ""
    yield "Any timm model works too, by timm's name, as in model=resnet18. To list those:"
    yield """  python -c "import timm; print(*timm.list_models('*resnet*'), sep='\\n')\""""
    yield ""
    yield "Options of every model:"
    yield from _options(Model, _keys(Model))


def _runs(folder: str) -> Iterator[str]:
    from pathlib import Path

    from shoal.report.runs import HEADER, find, rows
    from shoal.report.tables import table

    place = Path(folder)
    if not place.is_dir():
        raise UsageError(f"{folder}: no such folder; shoal list runs FOLDER finds runs below it")
    found = find(place)
    if not found:
        raise UsageError(f"no runs at or below {folder}; a run is a folder that `shoal train` made")
    yield table(list(rows(found)), HEADER)


def _parts(seam: str, name: str | None) -> Iterator[str]:
    from shoal.recipe.check import seam_word
    from shoal.recipe.part import kinds, names

    if name is not None and name not in names(seam):
        raise UsageError(f"no {seam_word(seam)} called '{name}'{did_you_mean(name, names(seam))}")
    listed = {one: part for one, part in kinds(seam).items() if name in (None, one)}
    shared = _shared(next(iter(listed.values())))
    yield f"{seam}: {KINDS[seam]}"
    for one, part in listed.items():
        yield ""
        yield _wrapped(_first_paragraph(part), first=f"{one}: ", rest=" " * 6)
        yield from _options(part, [key for key in _keys(part) if key not in shared])
    if shared:
        yield ""
        yield f"Options of every {seam_word(seam)}:"
        yield from _options(next(iter(listed.values())), shared)


def _shared(part: type[Part]) -> list[str]:
    """Keys that a part has from the base class of its seam, the one that names the seam."""
    base: Any = next(owner for owner in part.__mro__ if "SEAM" in vars(owner))
    return _keys(base)


def _keys(options: type[Options]) -> list[str]:
    """All keys but the name, which is said already."""
    from shoal.recipe.check import fields

    return [key for key in fields(options) if key != "name"]


def _options(options: type[Options], keys: list[str], above: str = "") -> Iterator[str]:
    """Each option as a recipe would write it with its default, its type in plain words, and its help below."""
    import msgspec

    from shoal.recipe.check import describe, fields, options_of, seam_of
    from shoal.recipe.part import field_help

    help_of = field_help(options)
    held = {field.name: field for field in msgspec.structs.fields(options)}
    for key in keys:
        wanted = fields(options)[key]
        group = None if seam_of(wanted) else options_of(wanted)
        if group is not None:
            yield f"  {above}{key}: (a group of keys)"
        else:
            needed = "; must be given" if held[key].required else ""
            yield _wrapped(
                f"({describe(wanted)}{needed})", first=f"  {above}{key}:{_default(held[key])} ", rest=" " * 6
            )
        if key in help_of:
            yield _wrapped(help_of[key], first=" " * 6, rest=" " * 6)
        if group is not None:
            yield from _options(group, _keys(group), f"{above}{key}.")


def _default(field: Any) -> str:
    """A default in the form a recipe would hold it, with a space before it; nothing where there is none."""
    import msgspec

    from shoal.recipe.check import shown
    from shoal.recipe.load import plain

    if field.required:
        return ""
    value = plain(field.default_factory() if field.default is msgspec.NODEFAULT else field.default)
    return f" {value}" if isinstance(value, str) else f" {shown(value)}"


def _first_paragraph(part: type[Part]) -> str:
    return (part.__doc__ or "").strip().partition("\n\n")[0]


def _wrapped(text: str, *, first: str, rest: str) -> str:
    width = min(shutil.get_terminal_size((100, 24)).columns, 100)
    return textwrap.fill(
        " ".join(text.split()), max(width, 40), initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )
