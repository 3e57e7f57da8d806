"""What a Study's folder tells a forecast: the rows of its `study.json`. Only this file knows their form."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shoal.base.errors import UsageError, first_line, shown_path

FILE = "study.json"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Keys beyond these are of no use here."""

    recipe: str
    strategy: str
    workers: int
    servers: int = 0
    images_per_s: float
    """Of all workers together, while training."""
    batch: int
    """Images of a step, over all workers."""
    parameters: int


def rows(folder: Path, recipe: str, strategy: str) -> list[Row]:
    """Those of one recipe under one strategy (`ps:mode=async` as a study writes it) and of one worker under any.

    UsageError: no study, not one of these runs, or a row that is not as it should be.
    """
    path = folder / FILE
    try:
        told = json.loads(path.read_text(encoding="utf-8"))["rows"]
        found = [msgspec.convert(row, Row) for row in told if row.get("images_per_s") is not None]
    except FileNotFoundError:
        raise UsageError(f"--from {shown_path(folder)}: no {FILE} there; `shoal scale` writes one") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise UsageError(f"{shown_path(path)}: not a study's rows ({first_line(error)})") from None
    wrong = next((row for row in found if row.workers < 1 or row.images_per_s <= 0 or row.batch < 1), None)
    if wrong is not None:
        raise UsageError(f"{shown_path(path)}: {wrong.workers} workers at {wrong.images_per_s:g} images/s cannot be")
    known = sorted({row.recipe for row in found})
    mine = [row for row in found if row.recipe == recipe and (row.strategy == strategy or row.workers == 1)]
    if not mine:
        there = ", ".join(known) or "none"
        raise UsageError(f"{shown_path(path)}: no finished run of {recipe} with {strategy} (recipes there: {there})")
    return mine


def rates(found: Sequence[Row]) -> list[tuple[int, float]]:
    """(workers, median rate of the repeats), rising."""
    sizes = sorted({row.workers for row in found})
    return [(n, statistics.median(row.images_per_s for row in found if row.workers == n)) for n in sizes]


def spread(found: Sequence[Row]) -> float:
    """Standard deviation over mean of the repeats, the largest of all sizes; 0 without repeats."""
    worst = 0.0
    for n in {row.workers for row in found}:
        same = [row.images_per_s for row in found if row.workers == n]
        if len(same) > 1:
            worst = max(worst, statistics.stdev(same) / statistics.fmean(same))
    return worst
