"""`shoal worker` (inside): what a launcher starts for each rank."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command("worker", hidden=True)
@click.option("--run", "folder", type=click.Path(path_type=Path), required=True)
@click.option("--name", required=True)
@click.option("--resume", default="auto")
def command(folder: Path, name: str, resume: str) -> None:
    """One worker of a run whose folder holds the resolved recipe."""
    from shoal.launch.parent import die_with_parent

    die_with_parent()  # before torch is imported: a launcher that dies in those seconds leaves nothing either
    from shoal.train.worker import leave, main

    def begin() -> int:
        from dataclasses import replace

        from shoal.base.run import Run
        from shoal.base.world import World
        from shoal.cli import BEGAN
        from shoal.recipe.load import load
        from shoal.train.worker import work

        run = Run(folder)
        began = float(os.environ.get("SHOAL_BEGAN", BEGAN))
        return work(
            replace(load(str(run.recipe)), name=name), run, World.from_env(os.environ), resume=resume, began=began
        )

    leave(main(begin))
