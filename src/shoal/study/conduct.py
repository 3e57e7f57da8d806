"""Conduct: trains what a study lacks, one training after another, and writes down what is known after each."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from shoal.study.grid import Cell, Grid
from shoal.study.measured import Trained, read_run, rows
from shoal.study.page import write_page
from shoal.study.pictures import write_pictures
from shoal.study.study import Study
from shoal.study.write import write_tables


def conduct(study: Study, grid: Grid, tell: Callable[[str], None]) -> list[Trained]:
    """Trains every missing run; returns those that failed. Interrupted, it can be called again and goes on.

    Runs that ended well are kept. A run that was cut short is trained anew: its times would be those of two sittings.
    """
    todo = [(repeat, cell) for repeat, cell in grid.order() if not read_run(study, cell, repeat).done]
    whole, took, failed = grid.repeats * len(grid.cells), [], []
    if len(todo) < whole:
        tell(f"{whole - len(todo)} of {whole} trainings are there already")
    for number, (repeat, cell) in enumerate(todo, whole - len(todo) + 1):
        began = time.monotonic()
        run = _train(study, grid, cell, repeat)
        took.append(time.monotonic() - began)
        left = statistics.mean(took) * (whole - number)
        head = f"[{number}/{whole}] {cell.where}, repeat {repeat + 1}"
        if run.done:
            top1 = f", top-1 {run.top1:.4f}" if run.top1 is not None else ""
            tell(f"{head}: {run.images_per_s:,.0f} images/s{top1} ({took[-1]:.0f} s; {_left(left)})")
        else:
            failed.append(run)
            tell(f"{head}: {run.state} (see {study.log(cell, repeat)})")
    write(study, grid)
    return failed


def write(study: Study, grid: Grid) -> None:
    """Tables and pictures of what is measured by now."""
    table = rows(study, grid)
    write_pictures(study, grid, table)
    write_tables(study, grid, table)
    write_page(study, grid, table)


def _train(study: Study, grid: Grid, cell: Cell, repeat: int) -> Trained:
    run, log = study.run(cell, repeat), study.log(cell, repeat)
    shutil.rmtree(run.folder, ignore_errors=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "shoal", *grid.command(cell, repeat, run.folder)]
    with open(log, "w") as file:
        file.write(f"$ {shlex.join(argv)}\n")
        file.flush()
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=_surroundings())
        try:
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)  # the training ends in good order, as at a Ctrl-C of its own
            process.wait()
            raise
    if code == 130:
        raise KeyboardInterrupt
    return read_run(study, cell, repeat)


def _surroundings() -> dict[str, str]:
    """A training of a study is a job of its own, whatever this process is."""
    return {key: value for key, value in os.environ.items() if key != "SHOAL_CONSOLE_FD"}


def _left(seconds: float) -> str:
    if seconds < 1:
        return "done"
    return f"about {seconds:.0f} s left" if seconds < 90 else f"about {seconds / 60:.0f} min left"
