"""What a Study's folder tells a forecast: its runs. Only this file knows their form, that of `shoal scale`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shoal.base.errors import ShoalError, UsageError, first_line, shown_path
from shoal.base.run import Run
from shoal.forecast.ways import Way
from shoal.recipe.load import load

FILE = "study.json"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Keys beyond these are of no use here."""

    strategy: str
    workers: int
    images_per_s: float | None
    """Of all workers together, while training; None: not done."""
    run: str
    """Its folder, below the study's."""
    servers: int | None = None


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A study's own file."""

    recipe: str
    weak: bool
    runs: list[Measured]
    overrides: list[str] = []


_OF_WEAK = ("batch", "batch_per_worker", "shards")
"""What `shoal scale --weak` says itself."""


@dataclass(frozen=True)
class Found:
    """The finished runs of one strategy; where it has none of one worker, those of another."""

    runs: list[Measured]
    parameters: int
    images_per_epoch: int
    told: Told

    def differs(self, overrides: Sequence[str]) -> list[str]:
        """A note where the study's recipe was changed in another way."""
        held = {word for word in self.told.overrides if not (self.told.weak and word.partition("=")[0] in _OF_WEAK)}
        asked = {word for word in overrides if not word.startswith("strategy")}
        if held == asked:
            return []
        was, now = (" ".join(sorted(words)) or "nothing" for words in (held, asked))
        return [f"The study's recipe was changed by {was}, this one by {now}: its speeds may be of other work."]

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


def read(folder: Path, recipe: str, strategy: Any, servers: int, *, weak: bool) -> Found:
    """servers: of the strategy, where the study has it with several numbers of them.

    UsageError: no study, one of something else, no run of use.
    """
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
    known = {run.strategy: _parsed(run.strategy) for run in done}
    mine = [run for run in done if known[run.strategy] == strategy]
    if not mine:  # threads are the machine's
        mine = [run for run in done if _on_any(known[run.strategy]) == _on_any(strategy)]
    if not mine:
        names = ", ".join(sorted(known)) or "none"
        raise UsageError(f"{shown_path(path)}: no finished run with {Way(strategy).text} (strategies there: {names})")
    if len({run.servers for run in mine}) > 1:
        mine = [run for run in mine if run.servers == servers]
        if not mine:
            raise UsageError(
                f"{shown_path(path)}: no finished run with {servers} servers; say --servers as it has them"
            )
    if all(run.workers > 1 for run in mine):
        mine += _alone(done)
    return Found(mine, *_start(folder, mine), told)


def _parsed(text: str) -> Any:
    """A strategy as a study's command named it, in any recipe; None where there is no such."""
    try:
        return load("digits", [f"strategy={text}"]).recipe.strategy
    except ShoalError:
        return None


def _on_any(strategy: Any) -> Any:
    return msgspec.structs.replace(strategy, threads=None) if strategy is not None else None


def _alone(runs: Sequence[Measured]) -> list[Measured]:
    """Those of one worker and one strategy: without servers, where there are such."""
    names = sorted({run.strategy for run in runs if run.workers == 1}, key=lambda name: name.startswith("ps"))
    return [run for run in runs if run.workers == 1 and run.strategy == names[0]] if names else []


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
