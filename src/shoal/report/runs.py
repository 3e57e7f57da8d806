"""Runs: the trainings below a folder, with what each came to."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from shoal.base.errors import ShoalError, shown_path
from shoal.base.run import Run
from shoal.report.tables import best, last

_KINDS = frozenset({"start", "val", "end"})
HEADER = ("run", "begun", "recipe", "state", "epochs", "top-1", "n", "images/s")


def find(folder: Path) -> list[Run]:
    """Runs at or below `folder`, the one begun last first; hidden folders and links are passed over."""
    found = []
    for here, folders, files in os.walk(folder):
        run = Run(Path(here))
        if run.recipe.name in files and run.trained:
            found.append(run)
            folders.clear()
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found, key=_begun, reverse=True)


def rows(runs: list[Run]) -> Iterator[tuple[object, ...]]:
    """A row below HEADER for each; a run that reported nothing, or is damaged, has what can be told."""
    for run in runs:
        place, begun = shown_path(run.folder), time.strftime("%Y-%m-%d %H:%M", time.localtime(_begun(run)))
        try:
            events = run.read_metrics(_KINDS)
        except ShoalError:
            yield place, begun, None, "damaged", None, None, None, None
            continue
        start, end, top = last(events, "start"), last(events, "end"), best(events)
        state = _state(run, end)
        if start is None:
            yield place, begun, None, state, None, None, None, None
            continue
        reached = max(event.get("images") or 0 for event in events)
        epochs = f"{reached / start['images_per_epoch']:.4g}/{start['epochs']:.4g}"
        scored = (f"{top['top1']:.4f}", f"{top['count']:,}") if top else (None, None)
        speed = f"{end['images_per_s']:,.0f}" if end and end["images_per_s"] else None
        yield place, begun, start["recipe"], state, epochs, *scored, speed


def _state(run: Run, end: dict | None) -> str:
    if end is not None:
        return "stopped" if end["reason"] == "signal" else "done"
    return "running" if run.claimed_by() else "died"


def _begun(run: Run) -> float:
    """Unix time; when the recipe was written, which is before anything else."""
    try:
        return run.recipe.stat().st_mtime
    except OSError:
        return 0.0
