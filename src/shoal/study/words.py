"""Words: what a study says in plain words: which way is best here, and why."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.study.grid import Grid
from shoal.study.measured import Row, Spread

_COSTS = {
    "exchange": "exchanging gradients",
    "waiting": "waiting for one another",
    "input": "waiting for images",
    "validation": "validating",
    "checkpoint": "saving",
}
_WORTH = 0.03
"""Share of the time from which on a cost is named."""


def conclusion(grid: Grid, table: Sequence[Row]) -> str:
    """The first paragraph of a study's report."""
    measured = [(row, row.speed) for row in table if row.speed is not None]
    if not measured:
        return "No training of this study has ended well; see its logs."
    ranked = sorted(measured, key=lambda pair: -pair[1].median)
    first, speed = ranked[0]
    said = [_fastest(first), _why(first)]
    equal = [row for row, other in ranked[1:] if not other.apart(speed)]
    if equal:
        said.append(f"Not told apart from it by these runs: {'; '.join(_speed(row) for row in equal)}.")
        said.append(_simplest(first, equal))
    said += [
        f"{row.cell.where} reaches {other.median / speed.median:.2f} of that: {_costs(row)}."
        for row, other in ranked[1:]
        if row not in equal and row.cell.workers == first.cell.workers
    ]
    said.append(_accuracy([row for row, _ in measured]))
    return " ".join(text for text in said if text)


def warnings(table: Sequence[Row], grid: Grid) -> list[str]:
    """What a reader must know before he believes the table."""
    told = [f"left out: {text}" for text in grid.left_out]
    runs = [run for row in table for run in row.runs]
    wrong = [run for run in runs if run.begun and not run.done]
    told += [f"{run.cell.where}, repeat {run.repeat + 1}: {run.state}" for run in wrong]
    if missing := sum(not run.begun for run in runs):
        told.append(f"{missing} of {len(runs)} trainings are still missing")
    for of, found in (
        ("of {} versions of Shoal", {run.code for run in runs}),
        ("with {} versions of torch", {run.torch for run in runs}),
        ("on {} kinds of machines", {run.machine for run in runs}),
    ):
        if len(several := sorted(found - {""})) > 1:
            kinds = of.format(len(several))
            told.append(f"runs {kinds} stand in one table ({'; '.join(several)}): not comparable")
    if grid.repeats < 3:
        told.append(f"n = {grid.repeats}: too few repeats to tell a difference from noise; use --repeats 3 or more")
    return told


def _fastest(row: Row) -> str:
    text = f"Fastest here: {_speed(row)}"
    if row.speed_up is not None and row.base is not None and row.base != row.cell and row.efficiency is not None:
        text += f", {row.speed_up.median:.2f} x {row.base.where} (efficiency {row.efficiency.median:.0%})"
    return text + "."


def _simplest(first: Row, equal: Sequence[Row]) -> str:
    """Which of the ways that are as fast as one another to take, and why."""
    equal = [row for row in equal if row.cell.workers <= first.cell.workers]
    simplest = min((first, *equal), key=lambda row: (not row.cell.same_model, row.cell.servers, row.cell.workers))
    mine, other = simplest.cell, first.cell
    why = [
        text
        for text, true in (
            ("any number of workers trains the same model", mine.same_model and not other.same_model),
            ("no server is needed", other.servers and not mine.servers),
            ("fewer workers are needed", mine.workers < other.workers),
        )
        if true
    ]
    return f"Of these, {mine.where} is the simplest: {' and '.join(why)}." if why else ""


def _speed(row: Row) -> str:
    assert row.speed is not None
    return f"{row.cell.where}, {figure(row.speed, ',.0f')} images/s"


def figure(spread: Spread | None, form: str, scale: float = 1.0) -> str:
    """`1,234 (1,200 to 1,260, n = 3)`; `-` for none."""
    if spread is None:
        return "-"
    median, low, high = (format(value * scale, form) for value in spread[:3])
    return f"{median} ({low} to {high}, n = {spread.n})" if spread.n > 1 else f"{median} (n = 1)"


def _why(row: Row) -> str:
    if not row.shares:
        return ""
    return f"Of its time {row.shares['compute']:.0%} is computing; {_costs(row)}."


def _costs(row: Row) -> str:
    named = [(row.shares.get(part, 0.0), text) for part, text in _COSTS.items()]
    named = sorted((item for item in named if item[0] >= _WORTH), reverse=True)
    if not named:
        return "nothing else takes more than " + format(_WORTH, ".0%")
    return ", ".join(f"{share:.0%} goes to {text}" for share, text in named)


def _accuracy(measured: Sequence[Row]) -> str:
    told = [(row, row.top1) for row in measured if row.top1 is not None]
    if not told:
        return ""
    best, highest = max(told, key=lambda pair: pair[1].median)
    if len(told) == 1:
        return f"Validation accuracy {figure(highest, '.4f')}."
    if any(top1.n == 1 for _, top1 in told):
        lowest = min(top1.low for _, top1 in told)
        most = max(top1.high for _, top1 in told)
        where = (
            f"{lowest:.4f} to {most:.4f}, highest with {best.cell.where}" if lowest < most else f"{most:.4f} everywhere"
        )
        return f"Validation accuracy {where}; n = 1 tells no spread."
    worse = [(row, top1) for row, top1 in told if top1.apart(highest)]
    if not worse:
        lowest = min(top1.median for _, top1 in told)
        return f"Validation accuracy is the same within its spread everywhere ({lowest:.4f} to {highest.median:.4f})."
    return (
        f"Validation accuracy is best with {best.cell.where}, {figure(highest, '.4f')}; lower with "
        + "; ".join(f"{row.cell.where}, {figure(top1, '.4f')}" for row, top1 in worse)
        + "."
    )
