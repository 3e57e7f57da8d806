"""`shoal report`: a page about a run, or about several side by side."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report", short_help="Make a page about a run, or about several side by side.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where the page goes. [default: report.html in the run's folder; of several, report.html here]",
)
def command(runs: tuple[Path, ...], out: Path | None) -> None:
    """Make one self-contained HTML page about RUN: what it came to, curves, classes, mistakes, time, recipe.

    Of several, it compares them. Runs may be done, under way or broken off; making the page changes nothing else.
    """
    from shoal.base.run import Run
    from shoal.report.reading import check

    found = [Run(run) for run in runs]
    for run in found:
        check(run)  # before anything heavier is imported
    from shoal.report.page import write

    click.echo(write(found, out or (Path("report.html") if len(runs) > 1 else None)))
