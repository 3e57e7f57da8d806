"""Published scaling tables, shipped beside the code with their sources, to check the laws against."""

from __future__ import annotations

from pathlib import Path

import msgspec

from shoal.recipe import yaml12

FOLDER = Path(__file__).parent / "published"


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One job at one or more sizes: rates by the number of workers."""

    job: str
    rates: dict[int, float] = {}
    """Workers -> rate of all together, images/s."""
    days: dict[int, float] = {}
    """Workers -> days of the whole training, where a source gives times and no rates."""
    printed: dict[str, float] = {}
    """Speed-ups as the source prints them: `1->8` -> 7.04."""
    note: str = ""
    """What is wrong or unexplained, and how it is dealt with."""

    def speeds(self) -> dict[int, float]:
        """Rates, or what is in the same proportion."""
        return self.rates or {workers: 1 / days for workers, days in self.days.items()}


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one source says."""

    source: str
    hardware: str
    per_host: int
    rows: list[Row]
    note: str = ""

    def row(self, job: str) -> Row:
        return next(row for row in self.rows if row.job == job)


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def table(name: str) -> Table:
    """The table of one source. A file that is not as it should be is a programming error (msgspec.ValidationError)."""
    path = FOLDER / f"{name}.yaml"
    raw, _ = yaml12.read(path.read_text(encoding="utf-8"), path.name)
    return msgspec.convert(raw, Table, strict=False)
