"""`shoal data io`: how fast images come."""

from __future__ import annotations

import json
from pathlib import Path

import click

from shoal.cli.counts import Counts
from shoal.cli.new_file import NewFile
from shoal.cli.seconds import Seconds


@click.command("io")
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--threads", type=Counts("threads"), metavar="N,N…", help="data.threads to try. [default: 1, 2, 4 … cores]"
)
@click.option("--turns", type=click.IntRange(min=1), default=5, show_default=True, metavar="N",
              help="So often all stages are measured, one after another.")  # fmt: skip
@click.option("--turn", "turn_s", type=Seconds(0.01), default="1s", show_default=True, metavar="TIME",
              help="How long each stage has in a turn.")  # fmt: skip
@click.option("--picture", type=NewFile(), help="Draw it (PNG).")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, with every turn.")
def input_output(
    recipe: str,
    overrides: tuple[str, ...],
    threads: tuple[int, ...] | None,
    turns: int,
    turn_s: float,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Measure how fast RECIPE's images come, stage by stage, and whether that holds its model back.

    read: the encoded images alone; decoded, cropped: the way up to there; in batches: as the training gets them, made
    by threads ahead of it, and sent to a GPU; on the device: arrived there and normalised. The model takes the same
    batch again and again. One worker; nothing is trained, nothing is kept.
    """
    from shoal.base.host import cores
    from shoal.recipe.load import load

    loaded = load(recipe, overrides)
    from shoal.train.intake import measure  # imports torch, which takes seconds

    found = measure(loaded.recipe, threads or _up_to(cores()), turns, turn_s)
    if picture:
        found.picture(picture, f"{loaded.name}: from {loaded.recipe.data.name} to batches")
    click.echo(json.dumps(found.plain(), indent=1) if as_json else found.text())


def _up_to(cores: int) -> tuple[int, ...]:
    """1, 2, 4 … and all of them."""
    return tuple(sorted({*(2**power for power in range(cores.bit_length()) if 2**power <= cores), cores}))
