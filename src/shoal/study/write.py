"""Write: a study's tables as CSV, JSON and Markdown. Every ratio in them can be reckoned anew from the runs' rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from shoal.base.files import write_whole
from shoal.study.grid import Grid
from shoal.study.measured import Row, Spread, Trained
from shoal.study.study import Study
from shoal.study.words import conclusion, warnings

MIB = 1 / (1 << 20)


def write_tables(study: Study, grid: Grid, table: Sequence[Row]) -> None:
    """All three kinds, each whole or as it was."""
    write_whole(study.runs_csv, _csv([_run(run) for row in table for run in row.runs]))
    write_whole(study.cells_csv, _csv([_cell(row) for row in table]))
    said = {"conclusion": conclusion(grid, table), "warnings": warnings(table, grid)}
    content = {
        "recipe": grid.recipe,
        "overrides": grid.overrides,
        "weak": grid.weak,
        **said,
        "rows": [_cell(row) for row in table],
        "runs": [_run(run) for row in table for run in row.runs],
    }
    write_whole(study.rows, json.dumps(content, indent=1) + "\n")
    write_whole(study.markdown, markdown(study, grid, table))


def _run(run: Trained) -> dict[str, Any]:
    cell = run.cell
    return {
        "strategy": cell.strategy,
        "workers": cell.workers,
        "servers": cell.servers,
        "repeat": run.repeat + 1,
        "run": run.path,
        "state": run.state,
        "images_per_s": run.images_per_s if run.done else None,
        "seconds": run.seconds if run.done else None,
        "top1": run.top1,
        "peak_bytes": run.peak_bytes,
        "bytes_per_step": run.bytes_per_step if run.done else None,
        "code": run.code,
        "torch": run.torch,
        "machine": run.machine,
        **{f"share_{name}": share for name, share in run.shares.items()},
    }


def _cell(row: Row) -> dict[str, Any]:
    cell, base = row.cell, row.base
    done = [run for run in row.runs if run.done]
    return {
        "strategy": cell.strategy,
        "workers": cell.workers,
        "servers": cell.servers,
        "n": len(done),
        **_spread("seconds", row.seconds),
        **_spread("images_per_s", row.speed),
        "images_per_s_per_worker": row.speed.median / cell.workers if row.speed else None,
        **_spread("top1", row.top1),
        **_spread("speed_up", row.speed_up),
        "efficiency": row.efficiency.median if row.efficiency else None,
        "base_strategy": base.strategy if base else None,
        "base_workers": base.workers if base else None,
        "base_servers": base.servers if base else None,
        "peak_bytes": row.peak_bytes.high if row.peak_bytes else None,
        "bytes_per_step": row.bytes_per_step if done else None,
    }


def _spread(name: str, spread: Spread | None) -> dict[str, float | None]:
    median, low, high = spread[:3] if spread else (None, None, None)
    return {name: median, f"{name}_low": low, f"{name}_high": high}


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    fields = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


HEADER = (
    "strategy",
    "workers",
    "servers",
    "n",
    "time, s",
    "images/s",
    "per worker",
    "speed-up",
    "efficiency",
    "validation top-1",
    "peak memory, MiB",
    "sent per step, kB",
)
TRAININGS = HEADER.index("n")
"""The column from which a row's runs are linked."""

CAPTION = (
    "Medians, smallest and largest of n trainings. Time is training, validating and saving, from the first step's "
    "beginning on; images/s leave out what came before the first log line, where as much followed. Speed-up and "
    "efficiency are over the same strategy with the fewest workers, or over the way that stands beside them, run by "
    "run with equal seeds."
)


def shown(row: Row) -> list[str]:
    """The cells of a row for people, under HEADER."""
    cell = row.cell
    done = [run for run in row.runs if run.done]
    own = row.base == cell
    return [
        cell.strategy,
        str(cell.workers),
        str(cell.servers),
        str(len(done)),
        _short(row.seconds, ".1f"),
        _short(row.speed, ",.0f"),
        format(row.speed.median / cell.workers, ",.0f") if row.speed else "-",
        "1" if own else _short(row.speed_up, ".2f") + _over(row),
        "100 %" if own else (f"{row.efficiency.median:.0%}".replace("%", " %") if row.efficiency else "-"),
        _short(row.top1, ".4f"),
        format(row.peak_bytes.high * MIB, ",.0f") if row.peak_bytes else "-",
        format(row.bytes_per_step / 1000, ",.0f") if done else "-",
    ]


def _over(row: Row) -> str:
    """What a speed-up is over, where that is another strategy, or one with other servers."""
    cell, base = row.cell, row.base
    named = base is not None and (base.strategy, base.servers) != (cell.strategy, cell.servers)
    return f" over {base.where}" if base is not None and named else ""


def _short(spread: Spread | None, form: str) -> str:
    if spread is None:
        return "-"
    median, low, high = (format(value, form) for value in spread[:3])
    return median if spread.n == 1 else f"{median} ({low}–{high})"


def markdown(study: Study, grid: Grid, table: Sequence[Row]) -> str:
    """The report as Markdown: conclusion, table with links to the runs, pictures."""
    kind = "weak: the batch grows with the workers" if grid.weak else "strong: all do the same work together"
    lines = [
        f"# {' '.join((grid.recipe, *grid.overrides))}",
        "",
        conclusion(grid, table),
        "",
        *(f"- **{text}**" for text in warnings(table, grid)),
        "",
        f"Scaling: {kind}; seeds from {grid.seed} on. {CAPTION}",
        "",
        "| " + " | ".join(HEADER) + " |",
        "|" + " --- |" * len(HEADER),
        *("| " + " | ".join(_with_links(row)) + " |" for row in table),
        "",
    ]
    lines += [f"![{title}]({name}.svg)" for name, title in PICTURES.items() if study.picture(name, "svg").exists()]
    return "\n".join(lines) + "\n"


def _with_links(row: Row) -> list[str]:
    """Beside the number of trainings, each of them."""
    cells = shown(row)
    runs = [f"[{run.repeat + 1}]({run.path}) {run.fate}".rstrip() for run in row.runs if run.begun]
    cells[TRAININGS] += f" ({', '.join(runs)})" if runs else ""
    return cells


PICTURES = {
    "throughput": "Images per second over workers",
    "efficiency": "Speed-up and efficiency over workers, with the ideal line",
    "accuracy": "Time and validation accuracy of each way",
    "curves": "Validation accuracy over images seen, each run",
    "shares": "Where the time went, and what was sent",
}
"""File name -> what it shows."""
