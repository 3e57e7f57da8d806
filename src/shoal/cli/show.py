"""`shoal show`: a recipe, resolved; what a run came to; or the schema of recipes for editors."""

from __future__ import annotations

from pathlib import Path

import click

from shoal.base.errors import UsageError
from shoal.base.run import Run


@click.command("show", short_help="Print a recipe, resolved; what a run came to; or the schema for editors.")
@click.argument("recipe", required=False)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--schema", "as_schema", is_flag=True, help="Print the JSON Schema of recipes, for editors.")
def command(recipe: str | None, overrides: tuple[str, ...], as_schema: bool) -> None:
    """Print RECIPE with every key and its value, as a file that trains the same model; or what a run came to.

    RECIPE is a built-in recipe's name, a path to a .yaml file, or a run folder.
    """
    if as_schema:
        if recipe is not None:
            raise UsageError("--schema is the same for all recipes; leave out RECIPE")
        click.echo(_schema())
    elif recipe is None:
        raise UsageError("which recipe? `shoal list recipes` names those that come with Shoal")
    elif Run(Path(recipe)).trained:
        if overrides:
            raise UsageError(
                f"{recipe} is a run, and what it trained cannot be changed; to see its recipe with changes: "
                f"shoal show {Path(recipe) / 'recipe.yaml'} {' '.join(overrides)}"
            )
        click.echo(_run(Path(recipe)))
    else:
        _recipe(recipe, overrides)


def _recipe(reference: str, overrides: tuple[str, ...]) -> None:
    from shoal.recipe.find import find, opening

    path = find(reference)  # an unknown name is told before anything heavier is imported
    from shoal.recipe.load import dump, load

    loaded = load(reference, overrides)
    for note in loaded.notes:
        click.echo(note, err=True)
    click.echo(opening(path) + dump(loaded.recipe), nl=False)


def _run(folder: Path) -> str:
    from shoal.report.terminal import told

    return told(Run(folder))


def _schema() -> str:
    import json

    from shoal.recipe.schema import schema

    return json.dumps(schema(), indent=2, ensure_ascii=False)
