"""Measured: the figures of each run of a study, and of each cell: medians, spread, speed-up, efficiency."""

from __future__ import annotations

import json
import re
import signal
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from shoal.base.errors import INTERRUPTED, REQUEUE, ShoalError
from shoal.base.run import Run
from shoal.report.sinks import Event
from shoal.report.spent import Spent
from shoal.report.tables import last
from shoal.study.grid import Cell, Grid
from shoal.study.study import Study

MISSING, UNFINISHED = "missing", "unfinished"
_ENDING = re.compile(r"exit (\d+)|killed by \w+")
_GO_ON = re.compile(r"(\d+) workers go on")
"""The note of a training that goes on with fewer."""


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
    """After the first log line where as much follows as came before it: the first step is part of starting up."""
    seconds: float = 0.0
    """Training, validating and saving, from the first step's beginning on."""
    top1: float | None = None
    peak_bytes: int | None = None
    """Memory of the worker that had most, at its highest."""
    bytes_per_step: float = 0.0
    """Sent by the first worker."""
    shares: dict[str, float] = field(default_factory=dict)
    """Of the time without the start."""
    code: str = ""
    """Hash of the Shoal that trained it."""
    torch: str = ""
    """Version."""
    machine: str = ""
    """GPU, or processor and cores, of the first worker."""

    @property
    def done(self) -> bool:
        return self.state == "done"

    @property
    def begun(self) -> bool:
        return self.state != MISSING

    @property
    def fate(self) -> str:
        """`failed`, `unfinished` …: the state without its reason; empty of one that is done."""
        return "" if self.done else self.state.partition(":")[0]


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
    """What the speed-up is over: this way with the fewest workers of all, or the first that has as few."""
    shares: dict[str, float]

    @property
    def bytes_per_step(self) -> float:
        return max((run.bytes_per_step for run in self.runs if run.done), default=0.0)

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
        return Trained(cell, repeat, path, f"damaged: {error}")
    end = last(events, "end")
    if end is None:
        return Trained(cell, repeat, path, _without_end(study.log(cell, repeat), events))
    if end["reason"] == "signal":
        return Trained(cell, repeat, path, UNFINISHED)
    if (left := _left(events, cell.processes)) < cell.processes:
        return Trained(cell, repeat, path, f"lost workers: {left} of {cell.processes} were left")
    environment = _environment(run)
    return Trained(
        cell,
        repeat,
        path,
        "done",
        images_per_s=_speed(events, end),
        seconds=end["trained_s"] + end["paused_s"],
        top1=end["top1"],
        peak_bytes=end.get("peak_bytes"),
        bytes_per_step=end["bytes_per_step"] or 0.0,
        shares=_shares(events, run),
        code=str(environment.get("code", "")),
        torch=str(environment.get("torch", "")),
        machine=_machine(environment),
    )


def _speed(events: Sequence[Event], end: Event) -> float:
    """Images/s without the first log interval, whose first step may compile; of all where too little follows it."""
    logged = [event for event in events if event["event"] == "train"]
    if logged and logged[-1]["images"] >= 2 * logged[0]["images"]:
        images, seconds = (logged[-1][key] - logged[0][key] for key in ("images", "trained_s"))
        return images / seconds
    return end["images_per_s"]


def _shares(events: Sequence[Event], run: Run) -> dict[str, float]:
    try:
        spent = Spent.of_events(events, run)
    except ShoalError:  # too short to tell
        return {}
    without = spent.total_s - spent.parts["start-up"]
    return {name: seconds / without for name, seconds in spent.parts.items() if name != "start-up"}


def _left(events: Sequence[Event], workers: int) -> int:
    """Workers who were still there at the end, of those that it began with."""
    told = [event["workers"] for event in events if event["event"] == "staleness"]
    notes = (_GO_ON.match(event["text"]) for event in events if event["event"] == "note")
    return min([workers, *told, *(int(match[1]) for match in notes if match)])


def _without_end(log: Path, events: Sequence[Event]) -> str:
    """Why a training did not come to its end, by what its command said last; `ending` is the log's last line."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    lines = [line.strip() for line in lines if line.strip() and not line.startswith("$ ")]
    match = _ENDING.fullmatch(lines[-1]) if lines else None
    if match is None or match[1] in map(str, (REQUEUE, INTERRUPTED)):
        return UNFINISHED if lines or events else MISSING
    return f"failed: {_cause(lines[:-1]) if match[1] and len(lines) > 1 else lines[-1]}"


def _cause(said: Sequence[str]) -> str:
    """What a training says last, in one line. A launcher names the worker that failed first, then what it said."""
    first = next((place for place in reversed(range(len(said))) if " failed first: " in said[place]), None)
    if first is None:
        return said[-1].removeprefix("ERROR: ")
    own = [line for line in said[first + 1 :] if not line.startswith("log: ")]
    return f"{said[first]}: {own[-1]}" if own and re.search(r"exit \d+$", said[first]) else said[first]


def ending(code: int) -> str:
    """The last line of a log: what became of the command, by its exit code as `subprocess` tells it."""
    return f"exit {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


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
    few = [other for other in measured if other.workers == fewest]
    return min(few, key=lambda other: (other.strategy != cell.strategy, other.servers != cell.servers))


def _environment(run: Run) -> dict[str, Any]:
    try:
        found = json.loads(run.environment.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _machine(environment: dict[str, Any]) -> str:
    device, cpu = environment.get("device", "cpu"), environment.get("cpu")
    if device != "cpu":
        return device
    return f"{cpu}, {environment.get('cores')} cores" if cpu else ""
