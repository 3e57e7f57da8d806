"""`shoal worker` (inside): what a launcher starts for each rank."""

from __future__ import annotations

import os
from pathlib import Path

import click

from shoal.base.run import Run
from shoal.train.signals import StopSignals


@click.command("worker", hidden=True)
@click.option("--run", "folder", type=click.Path(path_type=Path), required=True)
@click.option("--name", required=True)
@click.option("--resume", default="auto")
def command(folder: Path, name: str, resume: str) -> None:
    """One worker of a run whose folder holds the resolved recipe."""
    from shoal.launch.parent import die_with_parent

    die_with_parent()  # before torch is imported: a launcher that dies in those seconds leaves nothing either

    with StopSignals() as signals:  # noted from here on: importing torch takes seconds
        from shoal.train.worker import leave, main

        leave(main(lambda: _work(Run(folder), name, resume, signals)))


def _work(run: Run, name: str, resume: str, signals: StopSignals) -> int:
    from dataclasses import replace

    from shoal.base.world import World
    from shoal.cli import BEGAN
    from shoal.recipe.load import load
    from shoal.train.worker import work

    loaded = replace(load(str(run.recipe)), name=name)
    began = float(os.environ.get("SHOAL_BEGAN", BEGAN))
    return work(loaded, run, World.from_env(os.environ), signals, resume=resume, began=began)
