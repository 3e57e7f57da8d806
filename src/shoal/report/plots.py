"""Plots: a training's curves as one picture."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.base.duration import Span
from shoal.base.errors import ShoalError
from shoal.base.files import write_whole
from shoal.base.run import Run
from shoal.report.sinks import Event
from shoal.report.tables import best, last

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette: told apart by colour-blind readers and in grey print.
TRAIN, VAL, SPEED, MUTED = "#0072B2", "#D55E00", "#009E73", "#777777"

Points = tuple[list[float], list[float]]


def curves(run: Run) -> Path:
    """Draws loss, accuracy, learning rate and speed over epochs into `run.curves` (PNG) and returns its path.

    ShoalError when there is no train or val event to draw.
    """
    events = run.read_metrics()
    start = last(events, "start")
    if start is None or not any(event["event"] in ("train", "val") for event in events):
        raise ShoalError(f"{run.metrics_file}: nothing to draw before the first report of a training")
    from matplotlib.figure import Figure  # without pyplot: no window system, no global state
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(15, 4.8), dpi=110, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
    figure.suptitle(_title(events, start), fontsize=13)
    loss, accuracy, rate = figure.subplots(1, 3)
    images = start["images_per_epoch"]
    _draw_loss(loss, events, images)
    _draw_accuracy(accuracy, events, images)
    _draw_rate(rate, events, images)
    for axes in (loss, accuracy, rate):
        _finish(axes, events, start)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_whole(run.curves, picture.getvalue())
    return run.curves


def _title(events: Sequence[Event], start: Event) -> str:
    workers = f"{start['num_ranks']} worker{'s' * (start['num_ranks'] != 1)} ({start['strategy']})"
    val = last(events, "val")
    if val is None or val["top1"] is None:
        return f"{start['recipe']}, {workers}: not validated yet"
    final = "final" if last(events, "end") else "latest"
    return f"{start['recipe']}, {workers}: {final} validation accuracy {val['top1']:.4f} (n = {val['count']:,})"


def _draw_loss(axes: Axes, events: Sequence[Event], images: int) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    train, val = _points(events, "train", "loss", images), _points(events, "val", "loss", images)
    _line(axes, train, TRAIN, "training, per interval")
    _line(axes, val, VAL, "validation", marker="o")
    axes.set(title="Loss", ylabel="mean loss per image (nats)")
    values = train[1] + val[1]
    if values and min(values) > 0 and max(values) > 20 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif values:
        axes.set_ylim(min(0, *values), 1.08 * max(values) or 1)


def _draw_accuracy(axes: Axes, events: Sequence[Event], images: int) -> None:
    train, val = _points(events, "train", "top1", images), _points(events, "val", "top1", images)
    _line(axes, train, TRAIN, "training, per interval")
    _line(axes, val, VAL, "validation", marker="o")
    top = best(events)
    if top is not None:
        label = f"best validation: {top['top1']:.4f}"
        star = {"marker": "*", "markersize": 15, "color": VAL, "markeredgecolor": "black", "linestyle": "none"}
        axes.plot([top["images"] / images], [top["top1"]], label=label, zorder=5, **star)
    axes.set(title="Accuracy", ylabel="top-1 accuracy (share of images)")
    values = train[1] + val[1]
    if values:  # never so close that a hundredth looks like a leap
        upper = min(1.02, max(values) + 0.05)
        axes.set_ylim(max(-0.01, min(min(values) - 0.05, upper - 0.25)), upper)


def _draw_rate(axes: Axes, events: Sequence[Event], images: int) -> None:
    from matplotlib.ticker import StrMethodFormatter

    speed = axes.twinx()
    rates = _points(events, "train", "lr", images)
    speeds = _points(events, "train", "images_per_s", images)
    _line(axes, rates, TRAIN, "")
    _line(speed, speeds, SPEED, "", style="--")
    axes.set_title("Learning rate and speed")
    axes.set_ylabel("learning rate (solid)", color=TRAIN)
    speed.set_ylabel("speed (images/s, dashed)", color=SPEED)
    axes.set_ylim(0, 1.1 * max(rates[1], default=0) or 1)
    speed.set_ylim(0, 1.3 * max(speeds[1], default=0) or 1)
    speed.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    speed.spines["top"].set_visible(False)


def _points(events: Iterable[Event], kind: str, field: str, images: int) -> Points:
    """Epochs and values of a field where it was measured."""
    told = [event for event in events if event["event"] == kind and event[field] is not None]
    return [event["images"] / images for event in told], [event[field] for event in told]


def _line(axes: Axes, points: Points, color: str, label: str, *, marker: str = "", style: str = "-") -> None:
    epochs, values = points
    if not epochs:
        return
    if len(epochs) <= 2:  # a line of one point is invisible
        marker = "o"
    elif len(epochs) > 40:
        marker = ""
    axes.plot(epochs, values, style, color=color, label=label, marker=marker, markersize=4.5, linewidth=1.5)


def _finish(axes: Axes, events: Sequence[Event], start: Event) -> None:
    """What the panels share: epochs below, where training was resumed, a legend."""
    from matplotlib.ticker import MaxNLocator

    span = Span(start["images_per_epoch"], start["batch"])
    resumed = [event["resumed_from"] for event in events if event["event"] == "start"]
    for number, step in enumerate(step for step in resumed if step):
        epochs = span.images_before(step) / span.images_per_epoch
        axes.axvline(epochs, color=MUTED, linestyle=":", linewidth=1.5, label="" if number else "resumed", zorder=0)
    reached = max(event.get("images", 0) for event in events) / span.images_per_epoch
    axes.set_xlim(0, reached * 1.03)
    axes.xaxis.set_major_locator(MaxNLocator(integer=reached >= 3, nbins=8, steps=[1, 2, 5, 10]))
    axes.set_xlabel("epochs")
    axes.grid(alpha=0.25)
    axes.spines["top"].set_visible(False)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False)
