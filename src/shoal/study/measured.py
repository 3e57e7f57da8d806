"""Measured: the figures of each run of a study, and of each cell: medians, spread, speed-up, efficiency."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.base.errors import ShoalError
from shoal.base.run import Run
from shoal.report.spent import Spent
from shoal.report.tables import last
from shoal.study.grid import Cell, Grid
from shoal.study.study import Study


class Spread(NamedTuple):
    """Median, smallest and largest of `n` figures."""

    median: float
    low: float
    high: float
    n: int

    @staticmethod
    def of(figures: Sequence[float]) -> Spread | None:
        """None of none."""
        return Spread(statistics.median(figures), min(figures), max(figures), len(figures)) if figures else None

    def apart(self, other: Spread) -> bool:
        """Whether no figure of one lies among the other's."""
        return self.low > other.high or other.low > self.high


@dataclass(frozen=True)
class Trained:
    """One run's figures."""

    cell: Cell
    repeat: int
    path: str
    """Of the run folder, below the study's."""
    state: str
    """`done`, `missing`, `unfinished`, or what went wrong."""
    images_per_s: float = 0.0
    seconds: float = 0.0
    """Training, validating and saving; the start left out."""
    top1: float | None = None
    peak_bytes: int | None = None
    """Memory of the worker that had most, at its highest."""
    bytes_per_step: float = 0.0
    """Sent by the first worker."""
    shares: dict[str, float] = field(default_factory=dict)
    """Of the time without the start."""
    code: str = ""
    """Hash of the Shoal that trained it."""

    @property
    def done(self) -> bool:
        return self.state == "done"


@dataclass(frozen=True)
class Row:
    """A cell's figures over its repeats."""

    cell: Cell
    runs: tuple[Trained, ...]
    speed: Spread | None
    """Images/s of all workers."""
    seconds: Spread | None
    top1: Spread | None
    peak_bytes: Spread | None
    speed_up: Spread | None
    """Over the base, of runs with the same seed; None without a base."""
    base: Cell | None
    """What the speed-up is over: this strategy with the fewest workers, or the first strategy where it has no such."""
    shares: dict[str, float]

    @property
    def efficiency(self) -> Spread | None:
        if self.speed_up is None or self.base is None:
            return None
        times = self.cell.workers / self.base.workers
        median, low, high, n = self.speed_up
        return Spread(median / times, low / times, high / times, n)


def read_run(study: Study, cell: Cell, repeat: int) -> Trained:
    """One run, as far as it went."""
    run = study.run(cell, repeat)
    path = str(run.folder.relative_to(study.folder))
    try:
        events = run.read_metrics()
    except ShoalError as error:
        return Trained(cell, repeat, path, str(error))
    start, end = last(events, "start"), last(events, "end")
    if start is None:
        log = study.log(cell, repeat)
        return Trained(cell, repeat, path, _last_words(log.read_text(errors="replace")) if log.exists() else "missing")
    if end is None or end["reason"] == "signal":
        return Trained(cell, repeat, path, "unfinished")
    try:
        spent = Spent.of(run)
        without = spent.total_s - spent.parts["start-up"]
        shares = {name: seconds / without for name, seconds in spent.parts.items() if name != "start-up"}
    except ShoalError:  # too short to tell
        shares = {}
    return Trained(
        cell,
        repeat,
        path,
        "done",
        images_per_s=end["images_per_s"],
        seconds=end["trained_s"] + end["paused_s"],
        top1=end["top1"],
        peak_bytes=end.get("peak_bytes"),
        bytes_per_step=end["bytes_per_step"] or 0.0,
        shares=shares,
        code=_code(run),
    )


def rows(study: Study, grid: Grid) -> list[Row]:
    """Every cell of the grid, in its order."""
    runs = {cell: tuple(read_run(study, cell, repeat) for repeat in range(grid.repeats)) for cell in grid.cells}
    return [_row(cell, runs) for cell in grid.cells]


def _row(cell: Cell, runs: dict[Cell, tuple[Trained, ...]]) -> Row:
    done = [run for run in runs[cell] if run.done]
    base = _base(cell, runs)
    over = {run.repeat: run.images_per_s for run in runs.get(base, ()) if run.done} if base else {}
    ratios = [run.images_per_s / over[run.repeat] for run in done if run.repeat in over]
    named = [run.shares for run in done if run.shares]
    return Row(
        cell,
        runs[cell],
        speed=Spread.of([run.images_per_s for run in done]),
        seconds=Spread.of([run.seconds for run in done]),
        top1=Spread.of([run.top1 for run in done if run.top1 is not None]),
        peak_bytes=Spread.of([run.peak_bytes for run in done if run.peak_bytes is not None]),
        speed_up=Spread.of(ratios),
        base=base if ratios else None,
        shares={name: statistics.mean(shares[name] for shares in named) for name in named[0]} if named else {},
    )


def _base(cell: Cell, runs: dict[Cell, tuple[Trained, ...]]) -> Cell | None:
    measured = [other for other in runs if any(run.done for run in runs[other])]
    if not measured:
        return None
    fewest = min(other.workers for other in measured)
    own = [other for other in measured if other.strategy == cell.strategy and other.workers == fewest]
    return own[0] if own else next(other for other in measured if other.workers == fewest)


def _code(run: Run) -> str:
    try:
        return str(json.loads(run.environment.read_text()).get("code", ""))
    except (OSError, ValueError):
        return ""


def _last_words(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"failed: {lines[-1]}" if lines else "failed"
