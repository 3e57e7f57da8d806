"""Tables: aligned plain text, the same in a terminal, a log and a mail."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shoal.base.errors import ShoalError
from shoal.base.run import Run
from shoal.report.sinks import Event
from shoal.report.spent import Spent
from shoal.report.why import Why

_NUMBER = re.compile(r"^[-+]?[\d,]*\.?\d+(e[-+]?\d+)?( ?[%x])?$")


def table(rows: Sequence[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Rows as aligned text, two spaces between columns, a rule below the header; no newline at the end.

    Floats are shown with four significant digits, None as `-`; a column of numbers stands to the right. All rows must
    have as many cells as the first (ValueError).
    """
    body = [[_cell(value) for value in row] for row in rows]
    lines = [list(header), *body] if header else body
    if not lines:
        return ""
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    to_right = [_is_numeric([row[place] for row in body]) for place in range(len(columns))]
    if header:
        lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, to_right, strict=True)
        ).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_numeric(cells: Sequence[str]) -> bool:
    told = [cell for cell in cells if cell != "-"]
    return bool(told) and all(_NUMBER.match(cell) for cell in told)


def summary(run: Run) -> str:
    """What a training came to, as far as it went: result, speed, and where its files lie.

    ShoalError when the run has reported nothing yet.
    """
    events = run.read_metrics()
    start = last(events, "start")
    if start is None:
        raise ShoalError(f"{run.metrics_file}: no training has reported here yet")
    rows = [
        *_job(start),
        *_progress(events, start),
        *_result(events),
        *_pace(events),
        *_why(events, run),
        *_places(run),
    ]
    return table(rows)


def last(events: Sequence[Event], kind: str) -> Event | None:
    """The latest event of a kind."""
    return next((event for event in reversed(events) if event["event"] == kind), None)


def best(events: Sequence[Event]) -> Event | None:
    """The validation with the highest top-1 accuracy, the first of equals."""
    measured = [event for event in events if event["event"] == "val" and event["top1"] is not None]
    return max(measured, key=lambda event: event["top1"], default=None)


def _job(start: Event) -> list[tuple[str, str]]:
    return [
        ("recipe", start["recipe"]),
        ("model", f"{start['model']}, {start['parameters']:,} parameters"),
        *([("teacher", teacher_words(start["teacher"]))] if "teacher" in start else []),
        ("workers", f"{start['num_ranks']} ({start['strategy']}), batch {start['batch']}, shards {start['shards']}"),
    ]


def teacher_words(teacher: dict[str, str]) -> str:
    """The `teacher` of a start event."""
    return f"{teacher['name']} of {teacher['from']}, weights {teacher['weights'][:12]}"


def _progress(events: Sequence[Event], start: Event) -> list[tuple[str, str]]:
    reached = max(events, key=lambda event: (event["step"], event.get("images", 0)))
    epochs = reached.get("images", 0) / start["images_per_epoch"]
    end = last(events, "end")
    ended = {"length": "", "desired_accuracy": ", desired accuracy reached", "signal": ", stopped by a signal"}
    state = ", not ended" if end is None else ended.get(end["reason"], f", {end['reason']}")
    return [
        ("epochs", f"{epochs:.4g} of {start['epochs']:.4g}{state}"),
        ("images seen", f"{reached.get('images', 0):,} in {reached['step']:,} steps"),
    ]


def _result(events: Sequence[Event]) -> list[tuple[str, str]]:
    val, top = last(events, "val"), best(events)
    if val is None:
        return [("validation", "none yet")]
    weights = ", averaged weights" if val["averaged"] else ""
    n = f"n = {val['count']:,}"
    rows = [
        ("top-1", f"{_figure(val['top1'], '.4f')}  ({val['correct1']:,} correct, {n}, step {val['step']}{weights})"),
        ("top-5", f"{_figure(val['top5'], '.4f')}  ({val['correct5']:,} correct, {n})"),
        ("loss", f"{_figure(val['loss'], '.4f')}  (mean per image, {n})"),
    ]
    if top is not None:
        rows.append(("best top-1", f"{top['top1']:.4f}  (step {top['step']}, epoch {top['epoch'] + 1})"))
    return rows


def _pace(events: Sequence[Event]) -> list[tuple[str, str]]:
    told = last(events, "end") or last(events, "train")
    if told is None:
        return []
    rows = [
        ("speed", f"{_figure(told['images_per_s'], ',.1f')} images/s"),
        ("time trained", seconds(told["trained_s"])),
        ("waiting for data", f"{_figure(told['wait_share'], '.1%')} of it"),
    ]
    if told["event"] == "end":
        rows[2:2] = [("validating, saving", seconds(told["paused_s"]))]
        rows += [
            ("to first step", f"{seconds(told['first_step_s'])} from process start"),
            ("whole program", seconds(told["program_s"])),
        ]
        if told.get("bytes_per_step"):
            rows.append(("sent", f"{told['bytes_per_step'] / 1e6:,.3g} MB per step by the first worker"))
    return rows


def _why(events: Sequence[Event], run: Run) -> list[tuple[str, str]]:
    try:
        why = Why.of(Spent.of_events(events, run))
    except ShoalError:  # it has not come so far as to tell
        return []
    return [("time went to", why.told), ("held up by", why.verdict)]


def _places(run: Run) -> list[tuple[str, str]]:
    saved, kept = run.steps_saved(), run.read_best()
    rows = [("checkpoint", str(run.checkpoint(saved[-1])))] if saved else []
    if kept is not None and kept["step"] in saved[:-1]:
        rows.append(("best checkpoint", str(run.checkpoint(int(kept["step"])))))
    made = {"tensorboard": run.tensorboard, "metrics": run.metrics_file, "curves": run.curves, "report": run.report}
    return [*rows, *((name, str(path)) for name, path in made.items() if path.exists())]


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 120:
        return f"{value:.1f} s"
    if round(value) < 3600:
        return "{} min {:02} s".format(*divmod(round(value), 60))
    return "{} h {:02} min".format(*divmod(round(value / 60), 60))
