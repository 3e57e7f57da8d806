"""Study: one folder per study, and the only place that knows its file names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from shoal.base.errors import ShoalError, UsageError
from shoal.base.files import write_whole
from shoal.base.run import Run, RunLock
from shoal.study.grid import Cell, Grid


@dataclass(frozen=True)
class Study:
    """A study's folder. Nothing is read or made before a verb is called."""

    folder: Path

    @property
    def plan(self) -> Path:
        """The grid, as JSON."""
        return self.folder / "plan.json"

    @property
    def rows(self) -> Path:
        """What came out, as JSON: one row per cell, one per run, and the words."""
        return self.folder / "study.json"

    @property
    def cells_csv(self) -> Path:
        return self.folder / "cells.csv"

    @property
    def runs_csv(self) -> Path:
        return self.folder / "runs.csv"

    @property
    def markdown(self) -> Path:
        return self.folder / "study.md"

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    def picture(self, name: str, kind: str) -> Path:
        return self.folder / f"{name}.{kind}"

    def run(self, cell: Cell, repeat: int) -> Run:
        return Run(self.folder / "runs" / f"{cell.name}-{repeat + 1}")

    def log(self, cell: Cell, repeat: int) -> Path:
        """What the training's command printed."""
        return self.folder / "logs" / f"{cell.name}-{repeat + 1}.log"

    @property
    def lock(self) -> Path:
        return self.folder / ".lock"

    def claim(self) -> RunLock:
        """Makes the folder and takes it until this process ends. UsageError where it is another study's at work, of
        something else, or cannot be."""
        try:
            held = [path for path in self.folder.iterdir() if path != self.lock] if self.folder.exists() else []
            if held and self.plan not in held:
                raise UsageError(f"--out {self.folder}: is neither empty nor a study; choose another folder")
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {self.folder}: cannot be a study's folder ({error.strerror})") from None
        return RunLock.on(self.lock, f"--out {self.folder}", "study")

    def begin(self, grid: Grid) -> Grid:
        """Writes the plan, joined with the one that is there; UsageError where that is of other work."""
        held = self.grid() if self.plan.exists() else None
        if held is not None:
            self._check_same(held, grid)
        whole = held.joined(grid) if held is not None else grid
        write_whole(self.plan, json.dumps(whole.plain(), indent=1) + "\n")
        return whole

    def _check_same(self, held: Grid, grid: Grid) -> None:
        if not held.same_work(grid):
            raise UsageError(
                f"--out {self.folder}: holds a study of other work ({' '.join((held.recipe, *held.overrides))}, "
                f"seed {held.seed}{', weak' if held.weak else ''}); choose another folder"
            )
        if changed := held.changes(grid, str(self.plan)):
            keys = "; ".join(f"{key}: {then} -> {now}" for key, (then, now) in changed.items())
            raise UsageError(
                f"--out {self.folder}: the recipe {grid.recipe} has changed since it was begun ({keys}); change it "
                "back, or choose another folder"
            )

    def grid(self) -> Grid:
        """ShoalError where the folder holds no study."""
        try:
            return Grid.of(json.loads(self.plan.read_text()))
        except FileNotFoundError:
            raise ShoalError(f"{self.folder}: no study (it has no {self.plan.name})") from None
        except (ValueError, TypeError, KeyError) as error:
            raise ShoalError(f"{self.plan}: damaged ({error})") from None
