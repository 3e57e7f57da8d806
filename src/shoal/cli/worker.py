"""`shoal worker` (inside): what a launcher starts for each rank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.base.run import Run
from shoal.train.signals import StopSignals

if TYPE_CHECKING:
    from shoal.launch.pulse import Pulse


@click.command("worker", hidden=True)
@click.option("--run", "folder", type=click.Path(path_type=Path), required=True)
@click.option("--name", required=True)
@click.option("--resume", default="auto")
def command(folder: Path, name: str, resume: str) -> None:
    """One worker of a run whose folder holds the resolved recipe."""
    from shoal.launch.pulse import LONG, STARTS, Pulse, stacks_on_signal

    stacks_on_signal(os.environ)
    pulse = Pulse.from_env(os.environ)
    pulse.beat(STARTS, 0, LONG)
    _check_meeting()

    with StopSignals() as signals:  # noted from here on: importing torch takes seconds
        from shoal.train.worker import leave, main

        leave(main(lambda: _work(Run(folder), name, resume, signals, pulse)))


def _check_meeting() -> None:
    """Said before torch is imported, which takes seconds."""
    import sys

    from shoal.base.errors import ShoalError
    from shoal.base.world import World
    from shoal.launch.meeting import check_meeting
    from shoal.launch.report import report_error

    try:
        check_meeting(World.from_env(os.environ))
    except ShoalError as error:
        report_error(str(error), exit_code=error.exit_code)
        print(f"ERROR: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _work(run: Run, name: str, resume: str, signals: StopSignals, pulse: Pulse) -> int:
    from dataclasses import replace

    from shoal.base.world import World
    from shoal.recipe.load import load
    from shoal.train.worker import work

    if int(os.environ.get("SHOAL_GENERATION", "0")) and (resume == "never" or run.steps_saved()):
        resume = "auto"  # after a restart its own checkpoints count, not the one that the first start began from
    loaded = replace(load(str(run.recipe)), name=name)
    return work(loaded, run, World.from_env(os.environ), signals, resume=resume, began=_began(), pulse=pulse)


def _began() -> float:
    """Unix time of the command that started this worker; after a restart, of the worker itself: what was before is an
    earlier sitting's time."""
    from shoal.cli import BEGAN

    return BEGAN if int(os.environ.get("SHOAL_GENERATION", "0")) else float(os.environ.get("SHOAL_BEGAN", BEGAN))
