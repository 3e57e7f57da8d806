"""`shoal scale`: the same training by several strategies and numbers of workers, as a table that can be checked."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from shoal.base.errors import DONE, FAILED, ShoalError, shown_path
from shoal.cli.counts import Counts


@click.command("scale", short_help="Compare strategies and numbers of workers: a table, pictures, a verdict.")
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--workers", type=Counts("workers"), default="1,2", show_default=True, metavar="N,N…",
              help="Numbers of workers (of dp: of devices).")  # fmt: skip
@click.option("--strategies", default="ddp", show_default=True, metavar="S,S…",
              help="Strategies, as in ddp,ps,ps:mode=async,dp (`shoal list strategies`).")  # fmt: skip
@click.option("-s", "--servers", type=click.IntRange(min=0), metavar="S",
              help="Parameter servers, for strategies that have them. [default: 1]")  # fmt: skip
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, metavar="R",
              help="Trainings of each, with seeds one after another.")  # fmt: skip
@click.option("--weak", is_flag=True, help="Weak scaling: the recipe's batch is each worker's. [default: strong]")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
              help="Study folder; one that is there is gone on with. [default: studies/RECIPE]")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the trainings' commands, and train nothing.")
def command(
    recipe: str,
    overrides: tuple[str, ...],
    workers: tuple[int, ...],
    strategies: str,
    servers: int | None,
    repeats: int,
    weak: bool,
    out: Path | None,
    dry_run: bool,
) -> int:
    """Train RECIPE in each way, by turns, and write a study: CSV, JSON, Markdown, pictures, report.html.

    The order goes forth and back, so that a machine that slowly changes favours none. What was trained before is kept:
    the same command goes on after an interruption, more --repeats add to it.
    """
    from shoal.recipe.find import find

    find(recipe)  # an unknown name is told before anything heavier is imported
    from shoal.recipe.load import strategies_in
    from shoal.study.grid import Grid
    from shoal.study.study import Study

    grid = Grid.plan(recipe, overrides, strategies_in(strategies), workers, servers=servers, repeats=repeats, weak=weak)
    study = Study(out or Path("studies") / Path(recipe).name.removesuffix(".yaml").removesuffix(".yml"))
    for text in grid.left_out:
        click.echo(f"left out: {text}", err=True)
    if dry_run:
        import shlex

        for repeat, cell in grid.order():
            click.echo(shlex.join(["shoal", *grid.command(cell, repeat, study.run(cell, repeat).folder)]))
        return DONE
    from shoal.study.conduct import conduct

    try:
        with closing(study.claim()):
            failed = conduct(study, study.begin(grid), click.echo)
        click.echo("\n" + _told(study))
    except BrokenPipeError:
        raise
    except OSError as error:  # such as a full disk
        raise ShoalError(f"{shown_path(error.filename or study.folder)}: {error.strerror}") from None
    return FAILED if failed else DONE


def _told(study) -> str:
    from shoal.report.tables import table
    from shoal.study.measured import rows
    from shoal.study.words import conclusion, warnings
    from shoal.study.write import HEADER, shown

    grid = study.grid()
    measured = rows(study, grid)
    return "\n".join(
        [
            table([shown(row) for row in measured], HEADER),
            "",
            *(f"WARNING: {text}" for text in warnings(measured, grid)),
            conclusion(grid, measured),
            f"Study    {study.page} (and {study.markdown})",
        ]
    )
