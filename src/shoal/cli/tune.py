"""`shoal tune lr`: a first guess at the learning rate, from a hundred steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.base.errors import FAILED, UsageError
from shoal.cli.new_file import NewFile

if TYPE_CHECKING:
    from shoal.report.rates import Curve


@click.group("tune", short_help="Look for a good learning rate before a training.")
def command() -> None:
    """Figures of a recipe that are worth a look before a training.

    \b
    shoal tune lr digits
    shoal tune lr my.yaml model=resnet18 --seeds 5
    """


@command.command("lr")
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--from", "low", type=click.FloatRange(min=0, min_open=True), default=1e-4, show_default=True,
              metavar="LR", help="The first rate, of optim.lr.")  # fmt: skip
@click.option("--to", "high", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True,
              metavar="LR", help="The last one.")  # fmt: skip
@click.option("--steps", type=click.IntRange(min=20), default=100, show_default=True, metavar="N", help="Of each seed.")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, metavar="N",
              help="Models to try; one alone tells little.")  # fmt: skip
@click.option("--picture", type=NewFile(), default=Path("tune-lr.png"), show_default=True,
              help="Where the curves are drawn (PNG).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every loss.")
def lr(
    recipe: str,
    overrides: tuple[str, ...],
    low: float,
    high: float,
    steps: int,
    seeds: int,
    picture: Path,
    as_json: bool,
) -> int:
    """Train RECIPE for a few steps while the learning rate rises, and say where its loss falls fastest and is least.

    One worker, the recipe's own data, batch and optimizer; no checkpoint. The suggestion lies between the two rates: a
    first guess at the peak of a schedule with warm-up. It knows the first steps of a training only: regularisation, the
    schedule and the length decide how much more or less is best, so train with two or three rates around it.
    Ends with 1 where nothing can be suggested.
    """
    if low >= high:
        raise UsageError(f"--from {low:g}: expected less than --to {high:g}")
    from shoal.recipe.load import load

    loaded = load(recipe, overrides)
    from shoal.train.sweep import sweep  # imports torch, which takes seconds

    def tell(curve: Curve) -> None:
        click.echo(f"seed {curve.seed}: {len(curve.losses)} steps", err=True)

    rates = sweep(loaded.recipe, low, high, steps, seeds, tell)
    told = rates.text()
    if all(curve.losses for curve in rates.curves):
        rates.picture(picture, f"{loaded.name}: loss while the learning rate rises")
        told += f"\n{'picture':18}{picture}"
    click.echo(json.dumps(rates.plain(), indent=1) if as_json else told)
    return FAILED if rates.fault else 0
