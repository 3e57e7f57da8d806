"""What a Study's folder tells a forecast: its runs. Only this file knows their form, that of `shoal scale`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shoal.base.errors import ShoalError, UsageError, first_line, shown_path
from shoal.base.run import Run

FILE = "study.json"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Keys beyond these are of no use here."""

    strategy: str
    workers: int
    images_per_s: float | None
    """Of all workers together, while training; None: not done."""
    run: str
    """Its folder, below the study's."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A study's own file."""

    recipe: str
    weak: bool
    runs: list[Measured]


@dataclass(frozen=True)
class Found:
    """The finished runs of one strategy, and of one worker under any."""

    runs: list[Measured]
    parameters: int
    images_per_epoch: int

    @property
    def rates(self) -> list[tuple[int, float]]:
        """(workers, median rate of the repeats), rising."""
        return [(n, statistics.median(speeds)) for n, speeds in self._by_size.items()]

    @property
    def spread(self) -> float:
        """Standard deviation over mean of the repeats, the largest of all sizes; 0 without repeats."""
        several = [speeds for speeds in self._by_size.values() if len(speeds) > 1]
        return max((statistics.stdev(speeds) / statistics.fmean(speeds) for speeds in several), default=0.0)

    @property
    def _by_size(self) -> dict[int, list[float]]:
        sizes = sorted({run.workers for run in self.runs})
        return {n: [run.images_per_s or 0.0 for run in self.runs if run.workers == n] for n in sizes}


def read(folder: Path, recipe: str, strategy: str, *, weak: bool) -> Found:
    """strategy: as a study writes it, `ps:mode=async`. UsageError: no study, one of something else, no run of use."""
    path = folder / FILE
    try:
        told = msgspec.convert(json.loads(path.read_text(encoding="utf-8")), Told)
    except FileNotFoundError:
        raise UsageError(f"--from {shown_path(folder)}: no {FILE} there; `shoal scale` writes one") from None
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise UsageError(f"{shown_path(path)}: not a study ({first_line(error)})") from None
    if Path(told.recipe).stem != recipe:
        raise UsageError(f"{shown_path(path)}: a study of {told.recipe}, not of {recipe}")
    if told.weak != weak:
        way = (
            "add --weak: the study's batch grows" if told.weak else "leave out --weak: the study's batch does not grow"
        )
        raise UsageError(f"{shown_path(path)}: {way} with its workers")
    done = [run for run in told.runs if run.images_per_s is not None]
    wrong = next((run for run in done if run.workers < 1 or not (run.images_per_s or 0) > 0), None)
    if wrong is not None:
        raise UsageError(f"{shown_path(path)}: {wrong.workers} workers at {wrong.images_per_s:g} images/s cannot be")
    mine = [run for run in done if run.strategy == strategy or run.workers == 1]
    if not any(run.strategy == strategy for run in mine):
        known = ", ".join(sorted({run.strategy for run in done})) or "none"
        raise UsageError(f"{shown_path(path)}: no finished run with {strategy} (strategies there: {known})")
    return Found(mine, *_start(folder, mine))


def _start(folder: Path, runs: Sequence[Measured]) -> tuple[int, int]:
    """(parameters, images of an epoch) as the first run that is still there tells them; 0, 0 where none is."""
    for run in runs:
        try:
            events = Run(folder / run.run).read_metrics()
            start = next(event for event in events if event["event"] == "start")
            return int(start["parameters"]), int(start["images_per_epoch"])
        except (ShoalError, StopIteration, KeyError):
            continue
    return 0, 0
