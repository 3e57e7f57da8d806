"""Study: one folder per study, and the only place that knows its file names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError, UsageError
from shoal.base.files import write_whole
from shoal.base.run import Run
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

    def begin(self, grid: Grid) -> Grid:
        """Writes the plan, joined with the one that is there; UsageError where that is of other work."""
        held = self.grid() if self.plan.exists() else None
        if held is not None and not held.same_work(grid):
            raise UsageError(
                f"--out {self.folder}: holds a study of other work ({' '.join((held.recipe, *held.overrides))}, "
                f"seed {held.seed}{', weak' if held.weak else ''}); choose another folder"
            )
        if held is None and self.folder.exists() and any(self.folder.iterdir()):
            raise UsageError(f"--out {self.folder}: is neither empty nor a study; choose another folder")
        whole = held.joined(grid) if held is not None else grid
        try:
            write_whole(self.plan, json.dumps(whole.plain(), indent=1) + "\n")
        except OSError as error:
            raise UsageError(f"--out {self.folder}: cannot be made ({error.strerror})") from None
        return whole

    def grid(self) -> Grid:
        """ShoalError where the folder holds no study."""
        try:
            return Grid.of(json.loads(self.plan.read_text()))
        except FileNotFoundError:
            raise ShoalError(f"{self.folder}: no study (it has no {self.plan.name})") from None
        except (ValueError, TypeError, KeyError) as error:
            raise ShoalError(f"{self.plan}: damaged ({error})") from None

    def read_rows(self) -> dict[str, Any]:
        """What `rows` holds; ShoalError where nothing was measured yet."""
        try:
            return json.loads(self.rows.read_text())
        except FileNotFoundError:
            raise ShoalError(f"{self.folder}: nothing measured yet") from None
        except ValueError:
            raise ShoalError(f"{self.rows}: damaged") from None
