"""Reading: all that can be known of a run right now, be it done, under way, half-written or dead at its start."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from shoal.base.errors import ShoalError, UsageError, shown_path
from shoal.base.run import Run
from shoal.report.sinks import Event
from shoal.report.tables import best, last

if TYPE_CHECKING:
    from shoal.report.predictions import Predictions

State = Literal["done", "stopped", "running", "died"]
_WORDS = 300
"""Characters shown of a log's line."""


@dataclass(frozen=True)
class Reading:
    """Read once; what is not there is None or empty, never an error, unless a file is damaged in its middle."""

    run: Run
    events: tuple[Event, ...]
    owner: tuple[int, str] | None
    """The process that trains this run, and its host."""

    @staticmethod
    def of(run: Run) -> Reading:
        """UsageError where no run is; ShoalError where metrics are damaged."""
        check(run)
        owner = run.claimed_by()
        return Reading(run, tuple(run.read_metrics()), owner if owner and owner[0] != os.getpid() else None)

    @property
    def name(self) -> str:
        """The folder's, for people."""
        return shown_path(self.run.folder.resolve().name)

    @cached_property
    def start(self) -> Event | None:
        return last(self.events, "start")

    @cached_property
    def end(self) -> Event | None:
        return last(self.events, "end")

    @cached_property
    def best(self) -> Event | None:
        """The best validation so far."""
        return best(self.events)

    @property
    def resumed(self) -> bool:
        return self.start is not None and self.start["resumed_from"] is not None

    @property
    def state(self) -> State:
        if self.end is not None:
            return "stopped" if self.end["reason"] == "signal" else "done"
        return "running" if self.owner else "died"

    @property
    def epochs(self) -> float:
        """Epochs trained."""
        if self.start is None:
            return 0.0
        return max((event.get("images") or 0 for event in self.events), default=0) / self.start["images_per_epoch"]

    @cached_property
    def recipe(self) -> str:
        """The resolved recipe, as it stands in its file."""
        return self.run.recipe.read_text(encoding="utf-8", errors="replace")

    @cached_property
    def keys(self) -> dict[str, Any]:
        """The recipe's keys as overrides write them; none where the recipe is of another Shoal and cannot be read."""
        from shoal.recipe.load import flat, parse

        try:
            return flat(parse(self.recipe, str(self.run.recipe)).recipe)
        except ShoalError:
            return {}

    @cached_property
    def environment(self) -> dict[str, Any]:
        try:
            found = json.loads(self.run.environment.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @cached_property
    def judged(self) -> tuple[Predictions | None, str]:
        """What the best validation said of each image; or None, and why."""
        from shoal.report.predictions import Predictions

        kept = self.run.read_best()
        if kept is None:
            return None, "no checkpoint is marked as the best yet"
        path = self.run.predictions(int(kept["step"]))
        if not path.exists():
            return None, f"{shown_path(path)} is not there"
        try:
            return Predictions.read(path), ""
        except ShoalError as error:
            return None, str(error)

    @cached_property
    def last_words(self) -> str:
        """Of a dead run: the last error in its logs, else the last line of the first worker's."""
        folder = self.run.log("worker", 0).parent
        logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime) if folder.is_dir() else []
        found = ""
        for path in (self.run.log("worker", 0), *logs):
            lines = [line for line in _tail(path) if line.strip()]
            errors = [line for line in lines if line.startswith("ERROR")]
            found = errors[-1] if errors else found or (lines[-1] if lines else "")
        return found.strip()[:_WORDS]


def check(run: Run) -> None:
    """UsageError where no training was begun."""
    if not run.trained:
        kind = "not a run" if run.folder.exists() else "no such folder"
        raise UsageError(f"{shown_path(run.folder)}: {kind}; to find runs: shoal list runs FOLDER")


def _tail(path: os.PathLike[str], most: int = 1 << 16) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
