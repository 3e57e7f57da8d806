"""Page: one self-contained HTML file about a run, or about several side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal import __version__
from shoal.base.errors import ShoalError
from shoal.base.files import write_whole
from shoal.base.run import Run
from shoal.report import picture
from shoal.report.charts import Chart, Line
from shoal.report.confusion import MOST_CELLS, MOST_CLASSES, Confusion
from shoal.report.reading import Reading
from shoal.report.shares import Share, shares
from shoal.report.sinks import Event
from shoal.report.story import compared, interval, percent, story
from shoal.report.tables import last, seconds

if TYPE_CHECKING:
    import jinja2
    import numpy as np

    from shoal.report.predictions import Predictions

MOST_ROWS = 20
"""Classes shown before the whole table is asked for."""


def write(runs: Sequence[Run], out: Path | None = None) -> Path:
    """Makes the page of one run, or of several, and returns its path; `out` None: `run.report` of the first.

    UsageError where there is no run, ShoalError where metrics are damaged or the page cannot be written.
    """
    path = out or runs[0].report
    html = page([Reading.of(run) for run in runs])
    try:
        write_whole(path, html)
    except OSError as error:
        raise ShoalError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def page(readings: Sequence[Reading]) -> str:
    """The page's text."""
    told = [Told(reading) for reading in readings]
    return (
        templates()
        .get_template("page.html")
        .render(
            title=told[0].title if len(told) == 1 else f"{len(told)} runs side by side",
            runs=told,
            together=Together(told) if len(told) > 1 else None,
            version=__version__,
            made=time.strftime("%Y-%m-%d %H:%M"),
        )
    )


def templates(*folders: Path) -> jinja2.Environment:
    """Those of `pages/`, and of other folders that build upon them."""
    import jinja2

    loader = jinja2.FileSystemLoader([Path(__file__).parent / "pages", *folders])
    env = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    env.globals.update(most_cells=MOST_CELLS, most_classes=MOST_CLASSES)
    env.undefined = jinja2.StrictUndefined
    env.filters |= {"percent": percent, "seconds": seconds, "number": "{:,}".format}
    return env


@dataclass(frozen=True)
class Shown:
    """A validation image with what was thought of it."""

    uri: str
    text: str
    detail: str
    width: int
    """Pixels of the picture."""


@dataclass(frozen=True)
class Told:
    """What the page says of one run."""

    reading: Reading

    @property
    def title(self) -> str:
        start = self.reading.start
        return start["recipe"] if start else self.reading.name

    @cached_property
    def story(self) -> list[str]:
        return story(self.reading)

    @cached_property
    def began(self) -> str:
        first = next((event for event in self.reading.events if event["event"] == "start"), None)
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(first["time"])) if first else ""

    @cached_property
    def cards(self) -> list[tuple[str, str, str]]:
        """Name, figure and what it is of: the figures most asked for."""
        val, start = self.reading.best, self.reading.start
        end = self.reading.end or last(self.reading.events, "train")
        cards = []
        if val is not None:
            low, high = interval(val["correct1"], val["count"])
            averaged = ", averaged weights" if val["averaged"] else ""
            cards = [
                ("Top-1", percent(val["top1"]), f"{percent(low)} to {percent(high)}, n = {val['count']:,}{averaged}"),
                ("Top-5", percent(val["top5"]), f"{val['correct5']:,} of {val['count']:,} images"),
                ("Loss", f"{val['loss']:.4f}" if val["loss"] is not None else "-", "nats per validation image"),
            ]
        if end is not None and start is not None:
            speed = f"{end['images_per_s']:,.0f}" if end["images_per_s"] else "-"
            workers = f"{start['num_ranks']} worker{'s' * (start['num_ranks'] != 1)} ({start['strategy']})"
            cards += [("Time trained", seconds(end["trained_s"]), f"{self.reading.epochs:.4g} epochs"),
                      ("Images per second", speed, f"all together, {workers}")]  # fmt: skip
        return cards

    @cached_property
    def charts(self) -> list[Chart]:
        return [chart for chart in _charts(self.reading) if chart.told]

    @cached_property
    def shares(self) -> list[Share]:
        return shares(self.reading)

    @property
    def predictions(self) -> Predictions | None:
        return self.reading.judged[0]

    @cached_property
    def confusion(self) -> Confusion | None:
        return Confusion.of(self.predictions) if self.predictions is not None else None

    @cached_property
    def confusion_picture(self) -> str | None:
        """Where there are too many classes for numbers, and not too many for a picture."""
        if self.confusion is None or not MOST_CELLS < len(self.confusion.names) <= MOST_CLASSES:
            return None
        return picture.as_uri(self.confusion.png(), "png")

    @cached_property
    def worst(self) -> list[Shown]:
        return self._shown(self.predictions.worst()) if self.predictions is not None else []

    @cached_property
    def surest(self) -> list[Shown]:
        return self._shown(self.predictions.surest()) if self.predictions is not None else []

    def _shown(self, indices: np.ndarray) -> list[Shown]:
        held, shown = self.predictions, []
        assert held is not None
        for index in map(int, indices):
            pixels = held.picture(index)
            if pixels is None:
                continue
            guess, label = int(held.guesses[index, 0]), int(held.labels[index])
            sure = percent(float(held.probabilities[index, 0]))
            if guess == label:
                text, detail = held.name(label), sure
            else:
                text = f"{held.name(label)}, taken for {held.name(guess)}"
                detail = f"{sure}; {percent(float(held.label_probabilities[index]))} for the right one"
            shown.append(Shown(picture.data_uri(pixels), text, f"{detail}; image {index:,}", pixels.shape[1]))
        return shown

    @cached_property
    def environment(self) -> list[tuple[str, Any]]:
        start = self.reading.start
        why = [("chosen for you", text) for text in start["why"]] if start else []
        return [*self.reading.environment.items(), *why]

    @cached_property
    def notes(self) -> list[str]:
        """What the training wanted its reader to know."""
        return [event["text"] for event in self.reading.events if event["event"] == "note"]


@dataclass(frozen=True)
class Together:
    """What several runs say side by side."""

    runs: Sequence[Told]

    @cached_property
    def story(self) -> list[str]:
        return compared([told.reading for told in self.runs])

    @cached_property
    def names(self) -> list[str]:
        """Folder names; with a number where several are equal."""
        names = [told.reading.name for told in self.runs]
        return [f"{name} ({at + 1})" if names.count(name) > 1 else name for at, name in enumerate(names)]

    @cached_property
    def rows(self) -> list[tuple[str, list[str]]]:
        """Name of a figure and its value in each run."""
        cards = [{name: figure for name, figure, _ in told.cards} for told in self.runs]
        figures = list(dict.fromkeys(name for card in cards for name in card))
        return [("State", [told.reading.state for told in self.runs])] + [
            (name, [card.get(name, "-") for card in cards]) for name in figures
        ]

    @cached_property
    def differences(self) -> list[tuple[str, list[str]]]:
        """Recipe keys that are not the same in all runs, with the value of each."""
        keys = [told.reading.keys for told in self.runs]
        names = sorted({name for held in keys for name in held})
        rows = [(name, [_value(held.get(name)) for held in keys]) for name in names]
        return [row for row in rows if len(set(row[1])) > 1]

    @cached_property
    def classes(self) -> list[tuple[str, list[str]]]:
        """Top-1 by class, where all runs have the same classes; else none."""
        held = [told.confusion for told in self.runs]
        found = [confusion for confusion in held if confusion is not None]
        if len(found) < len(held) or len({confusion.names for confusion in found}) > 1:
            return []
        if len(found[0].names) > MOST_CLASSES:
            return []
        by_name = [{row.name: percent(row.top1) for row in confusion.rows()} for confusion in found]
        return [(name, [rows.get(name, "-") for rows in by_name]) for name in found[0].names if name in by_name[0]]

    @cached_property
    def charts(self) -> list[Chart]:
        def lines(kind: str, field: str, *, marks: bool = False) -> tuple[Line, ...]:
            return tuple(
                Line.of(name, _points(told.reading, kind, field), marks=marks)
                for name, told in zip(self.names, self.runs, strict=True)
            )

        charts = (
            Chart("Validation accuracy", "epochs", "top-1, share of images", lines("val", "top1", marks=True), top=1),
            Chart("Validation loss", "epochs", "nats per image", lines("val", "loss", marks=True), log=True),
            Chart("Training loss", "epochs", "mean loss per image", lines("train", "loss"), log=True),
            Chart("Learning rate", "epochs", "", lines("train", "lr"), from_zero=True),
            Chart("Speed", "epochs", "images/s, all workers", lines("train", "images_per_s"), from_zero=True),
        )
        return [chart for chart in charts if chart.told]


def _value(value: Any) -> str:
    """As a recipe would have it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _charts(reading: Reading) -> Iterator[Chart]:
    def line(name: str, kind: str, field: str, *, marks: bool = False) -> Line:
        return Line.of(name, _points(reading, kind, field), marks=marks)

    train, val = "training, per interval", "validation"
    top = reading.best
    n = f"n = {top['count']:,} validation images." if top else ""
    start = reading.start
    trained = f"n = {start['images_per_epoch']:,} training images per epoch." if start else ""
    apart = "Training: the whole loss; validation: cross-entropy." if start and "teacher" in start else ""
    about = " ".join(filter(None, (trained, n, apart)))
    yield Chart(
        "Loss", "epochs", "mean loss per image (nats)",
        (line(train, "train", "loss"), line(val, "val", "loss", marks=True)), about, log=True,
    )  # fmt: skip
    yield Chart(
        "What the loss is made of", "epochs", "before weights",
        (line("labels", "train", "loss_label"), line("teacher", "train", "loss_distill")),
        "Labels: over the images that have one. Teacher: over all images.", log=True,
    )  # fmt: skip
    for title, field in (("Top-1 accuracy", "top1"), ("Top-5 accuracy", "top5")):
        lines = line(train, "train", field), line(val, "val", field, marks=True)
        yield Chart(title, "epochs", "share of images", lines, n, top=1.0)
    yield Chart("Learning rate", "epochs", "", (line("learning rate", "train", "lr"),), from_zero=True)
    skipped = (reading.end or {}).get("skipped") or 0
    yield Chart(
        "Loss scale", "epochs", "factor", (line("loss scale", "train", "loss_scale"),),
        f"{skipped} steps were skipped for an overflow." if skipped else "", log=True,
    )  # fmt: skip
    yield Chart(
        "Speed", "epochs", "images/s, all workers", (line("images/s", "train", "images_per_s"),),
        "Without validation and saving.", from_zero=True,
    )  # fmt: skip
    yield Chart(
        "Waiting for images", "epochs", "share of the interval", (line("waiting", "train", "wait_share"),),
        from_zero=True, top=1.0,
    )  # fmt: skip
    yield Chart(
        "Staleness", "epochs", "pushes of others in between", (line("mean", "staleness", "mean"),
                                                               line("largest", "staleness", "max")), from_zero=True,
    )  # fmt: skip


def _points(reading: Reading, kind: str, field: str) -> list[tuple[float, float]]:
    """Epochs and values of a field where it was measured."""
    if reading.start is None:
        return []
    images = reading.start["images_per_epoch"]
    return [(e["images"] / images, e[field]) for e in reading.events if _measured(e, kind, field)]


def _measured(event: Event, kind: str, field: str) -> bool:
    return event["event"] == kind and event.get(field) is not None
