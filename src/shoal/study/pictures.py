"""Pictures: a study drawn: throughput, speed-up and efficiency, time and accuracy, curves, shares of time, bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shoal.base.errors import ShoalError
from shoal.base.files import write_whole
from shoal.base.run import Run
from shoal.report.spent import PARTS
from shoal.study.grid import Grid
from shoal.study.measured import Row, Spread
from shoal.study.study import Study
from shoal.study.write import PICTURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by colour-blind readers and in grey print.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#777777", "#000000")
_MARKERS = "os^Dv<>p"


def write_pictures(study: Study, grid: Grid, table: Sequence[Row]) -> list[str]:
    """Draws what there is to draw, as PNG and SVG; returns the names drawn."""
    measured = [row for row in table if row.speed is not None]
    if not measured:
        return []
    drawn = []
    for name in PICTURES:
        picture = _figure(grid, 2 if name in _DOUBLE else 1)
        if _DRAW[name](picture.axes, measured, study):
            for kind in ("png", "svg"):
                held = io.BytesIO()
                picture.savefig(held, format=kind, metadata={"Date": None} if kind == "svg" else None)
                write_whole(study.picture(name, kind), held.getvalue())
            drawn.append(name)
    return drawn


def _figure(grid: Grid, columns: int) -> Figure:
    from matplotlib.figure import Figure  # without pyplot: no window system, no global state
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(5.5 * columns + 1.5, 4.4), dpi=110, layout=ConstrainedLayoutEngine())
    figure.suptitle(f"{grid.recipe}, {'weak' if grid.weak else 'strong'} scaling, n = {grid.repeats}", fontsize=11)
    figure.subplots(1, columns)
    return figure


def _by_way(rows: Sequence[Row]) -> list[tuple[str, str, str, list[Row]]]:
    """(way, colour, marker, its rows by workers)."""
    names = list(dict.fromkeys(row.cell.way for row in rows))
    return [
        (
            name,
            _COLORS[place % len(_COLORS)],
            _MARKERS[place % len(_MARKERS)],
            sorted((row for row in rows if row.cell.way == name), key=lambda row: row.cell.workers),
        )
        for place, name in enumerate(names)
    ]


def _bars(axes: Axes, rows: Sequence[Row], spreads: Sequence[Spread], color: str, marker: str, label: str) -> None:
    medians = [spread.median for spread in spreads]
    below = [spread.median - spread.low for spread in spreads]
    above = [spread.high - spread.median for spread in spreads]
    axes.errorbar(
        [row.cell.workers for row in rows], medians, [below, above], color=color, marker=marker, label=label, capsize=3
    )


def _over_workers(axes: Axes, rows: Sequence[Row], label: str) -> None:
    counts = sorted({row.cell.workers for row in rows})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlabel("workers")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")


def _throughput(axes: Sequence[Axes], rows: Sequence[Row], _: Study) -> bool:
    for name, color, marker, own in _by_way(rows):
        _bars(axes[0], own, [row.speed for row in own if row.speed], color, marker, name)
    _over_workers(axes[0], rows, "images/s, all workers (median, smallest, largest)")
    return True


def _efficiency(axes: Sequence[Axes], rows: Sequence[Row], _: Study) -> bool:
    known = [row for row in rows if row.speed_up is not None]
    counts = sorted({row.cell.workers for row in known})
    if len(counts) < 2:
        return False
    first, second = axes
    for name, color, marker, own in _by_way(known):
        _bars(first, own, [row.speed_up for row in own if row.speed_up], color, marker, name)
        _bars(second, own, [row.efficiency for row in own if row.efficiency], color, marker, name)
    first.plot(counts, [count / counts[0] for count in counts], "--", color="#777777", label="ideal")
    second.axhline(1, linestyle="--", color="#777777", label="ideal")
    _over_workers(first, known, f"speed-up over {counts[0]} worker{'s' * (counts[0] != 1)}")
    _over_workers(second, known, "efficiency (speed-up / workers)")
    return True


def _accuracy(axes: Sequence[Axes], rows: Sequence[Row], _: Study) -> bool:
    known = [row for row in rows if row.top1 is not None and row.seconds is not None]
    for name, color, marker, own in _by_way(known):
        for row in own:
            for run in row.runs:
                if run.done and run.top1 is not None:
                    label = name if row is own[0] and run.repeat == 0 else None
                    axes[0].plot(run.seconds, run.top1, marker, color=color, label=label, alpha=0.8)
                    axes[0].annotate(f" {row.cell.workers}", (run.seconds, run.top1), fontsize=8, color=color)
    axes[0].set_xlabel("training, validating and saving, s; the number is the workers")
    axes[0].set_ylabel("validation top-1 at the end")
    axes[0].grid(alpha=0.3)
    if known:
        axes[0].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return bool(known)


def _curves(axes: Sequence[Axes], rows: Sequence[Row], study: Study) -> bool:
    drawn = False
    for name, color, _, own in _by_way(rows):
        for row in own:
            for run in row.runs:
                points = _validations(Run(study.folder / run.path)) if run.done else []
                if points:
                    label = name if not any(line.get_label() == name for line in axes[0].lines) else None
                    style = "-" if row is own[0] else "--"
                    axes[0].plot(*zip(*points, strict=True), style, marker=".", color=color, label=label, alpha=0.6)
                    drawn = True
    axes[0].set_xlabel("images seen (solid: fewest workers)")
    axes[0].set_ylabel("validation top-1")
    axes[0].grid(alpha=0.3)
    if drawn:
        axes[0].legend(fontsize=8, loc="lower right")
    return drawn


def _validations(run: Run) -> list[tuple[int, float]]:
    try:
        events: list[dict[str, Any]] = run.read_metrics()
    except ShoalError:
        return []
    return [(event["images"], event["top1"]) for event in events if event["event"] == "val"]


def _shares(axes: Sequence[Axes], rows: Sequence[Row], _: Study) -> bool:
    known = [row for row in rows if row.shares]
    times, sent = axes
    left = [0.0] * len(known)
    names = [row.cell.where for row in known]
    for place, part in enumerate(part for part in PARTS if part != "start-up"):
        widths = [100 * row.shares.get(part, 0.0) for row in known]
        hatch = "//" if place >= len(_COLORS) else None
        times.barh(names, widths, left=left, label=part, color=_COLORS[place % len(_COLORS)], hatch=hatch)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    times.set_xlabel("share of the time without start-up, %")
    times.set_xlim(0, 100)
    sent.barh(names, [row.bytes_per_step / 1000 for row in known], color="#777777")
    sent.set_xlabel("sent per step by the first worker, kB")
    sent.tick_params(labelleft=False)
    sent.grid(axis="x", alpha=0.3)
    for own in axes:
        own.invert_yaxis()
    if known:
        times.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    return bool(known)


_DOUBLE = ("efficiency", "shares")
"""Those of two parts, side by side."""
_DRAW = {
    "throughput": _throughput,
    "efficiency": _efficiency,
    "accuracy": _accuracy,
    "curves": _curves,
    "shares": _shares,
}
