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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn, TextIO

from shoal.base.errors import INTERRUPTED, REQUEUE
from shoal.base.run import Run
from shoal.launch.leash import Leash
from shoal.study.grid import Cell, Grid
from shoal.study.measured import Trained, ending, read_run, rows
from shoal.study.page import write_page
from shoal.study.pictures import write_pictures
from shoal.study.study import Study
from shoal.study.write import write_tables


def conduct(study: Study, grid: Grid, tell: Callable[[str], None]) -> list[Trained]:
    """Trains every missing run; returns those that failed. Interrupted, it can be called again and goes on.

    Runs that ended well are kept. A run that was cut short is trained anew: its times would be those of two sittings.
    The caller holds the study's claim.
    """
    try:
        with _stopped_by_signals():
            failed = _train_all(study, grid, tell)
    except BaseException as error:
        with suppress(Exception):  # what ended the study is what there is to be told
            write(study, grid)
        if not isinstance(error, Exception):
            tell("stopped; the same command goes on")
        raise
    write(study, grid)
    return failed


def write(study: Study, grid: Grid) -> None:
    """Tables, pictures and page of what is measured by now."""
    table = rows(study, grid)
    write_pictures(study, grid, table)
    write_tables(study, grid, table)
    write_page(study, grid, table)


def _train_all(study: Study, grid: Grid, tell: Callable[[str], None]) -> list[Trained]:
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
        write_tables(study, grid, rows(study, grid))
    return failed


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a study as Ctrl-C does: with the training under way, and with what is known written."""

    def stop(number: int, frame: object) -> NoReturn:
        raise SystemExit(REQUEUE)

    heard = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _train(study: Study, grid: Grid, cell: Cell, repeat: int) -> Trained:
    run, log = study.run(cell, repeat), study.log(cell, repeat)
    _clear(run)
    log.parent.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "shoal", *grid.command(cell, repeat, run.folder)]
    with open(log, "w") as file:
        file.write(f"$ {shlex.join(argv)}\n")
        file.flush()
        code = _call(argv, file)
        file.write(f"{ending(code)}\n")
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return read_run(study, cell, repeat)


def _clear(run: Run) -> None:
    """Nothing is left of a run that was cut short. UsageError where its training lives on."""
    if run.folder.exists():
        run.claim().close()
        shutil.rmtree(run.folder)


def _call(argv: list[str], log: TextIO) -> int:
    """A command's exit code. It does not outlive this process, and has ended when a signal ends this call."""
    leash = Leash()
    child = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_surroundings(),
        preexec_fn=leash.arm, pass_fds=leash.descriptors,
    )  # fmt: skip
    leash.started()
    try:
        return child.wait()
    except BaseException:
        child.send_signal(signal.SIGTERM)  # the training ends in good order, as at a Ctrl-C of its own
        try:
            child.wait()
        finally:  # a second signal: at once
            child.kill()
            child.wait()
        raise
    finally:
        leash.drop()


def _surroundings() -> dict[str, str]:
    """A training of a study is a job of its own, whatever this process is."""
    return {key: value for key, value in os.environ.items() if key != "SHOAL_CONSOLE_FD"}


def _left(seconds: float) -> str:
    if seconds < 1:
        return "done"
    return f"about {seconds:.0f} s left" if seconds < 90 else f"about {seconds / 60:.0f} min left"
