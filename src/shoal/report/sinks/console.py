"""The console: plain lines for logs and scripts, one live line where a person watches."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from shoal.report.sinks import Event, Sink, Sinks
from shoal.report.tables import teacher_words

if TYPE_CHECKING:
    from rich.text import Text

_REASONS = {"length": "", "desired_accuracy": "desired accuracy reached after ", "signal": "stopped by a signal after "}


def console_sink(env: Mapping[str, str]) -> Sink:
    """The sink for this process's surroundings.

    SHOAL_CONSOLE_FD names a file descriptor of the person's terminal when stdout and stderr go to a log; else the
    person, or whoever collects the output, is on stderr. TERM=dumb gets plain lines, NO_COLOR a bar without colours.
    """
    if "SHOAL_CONSOLE_FD" not in env:
        return _sink_for(sys.stderr, env)
    log = Plain(sys.stdout)
    try:
        terminal = os.fdopen(int(env["SHOAL_CONSOLE_FD"]), "w", encoding="utf-8", errors="replace", closefd=False)
    except (OSError, ValueError):  # the terminal did not follow us here; the log did
        return log
    return Sinks([_sink_for(terminal, env), log])


def _sink_for(stream: TextIO, env: Mapping[str, str]) -> Sink:
    if stream.isatty() and env.get("TERM", "dumb") != "dumb":
        return Bar(stream, color=not env.get("NO_COLOR"))
    return Plain(stream)


class Plain(Sink):
    """Lines that scripts have grepped since MXNet: `Epoch[0] Validation-accuracy=0.974930`, one per figure."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, event: Event) -> None:
        with suppress(OSError):  # nobody reads any more: no reason to stop training
            for line in _plain_lines(event):
                self._stream.write(line + "\n")
            self._stream.flush()

    def close(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def _plain_lines(event: Event) -> list[str]:
    match event["event"]:
        case "start":
            return start_lines(event)
        case "train":
            speed, top1 = _figure(event["images_per_s"], ".2f"), _figure(event["top1"], ".6f")
            where = f"Epoch[{event['epoch']}] Batch [{event['batch']}]"
            return [f"{where} Speed: {speed} samples/sec accuracy={top1}"]
        case "epoch":
            return [
                f"Epoch[{event['epoch']}] Train-accuracy={_figure(event['top1'], '.6f')}",
                f"Epoch[{event['epoch']}] Time cost={_figure(event['seconds'], '.3f')}",
            ]
        case "val":
            return [f"Epoch[{event['epoch']}] Validation-accuracy={_figure(event['top1'], '.6f')}"]
        case "staleness":
            share = f"{event['counted']} of {event['expected']} images"
            mean = _figure(event["mean"], ".2f")
            return [
                f"Epoch[{event['epoch']}] Staleness mean={mean} max={event['max']} workers={event['workers']} {share}"
            ]
        case "skip":
            return [skip_line(event)]
        case "save":
            return [f'Saved checkpoint to "{event["path"]}"']
        case "note":
            return [note_line(event)]
        case "end":
            return [done_line(event)]
    return []


class Bar(Sink):
    """One live line that shows where training stands; validations, checkpoints and notes stay above it.

    Drawn when an event arrives (at most ten times a second), never from a thread of its own.
    """

    def __init__(self, stream: TextIO, *, color: bool = True) -> None:
        from rich.console import Console
        from rich.live import Live

        self._start: Event = {}
        self._train: Event = {}
        self._val: Event = {}
        self._pace_from: tuple[float, int] | None = None
        self._drawn = -math.inf
        self._stream = stream
        self._console = Console(file=stream, no_color=not color, highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console,
            get_renderable=self._line,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=stream is sys.stderr,
        )

    def write(self, event: Event) -> None:
        with suppress(OSError):
            self._fit()
            match event["event"]:
                case "start":
                    self._start = event
                    self._say("\n".join(start_lines(event)), "dim")
                    self._live.start(refresh=True)
                    self._console.show_cursor()  # a killed trainer must not leave a terminal without cursor
                case "train":
                    self._train = event
                    self._pace_from = self._pace_from or (time.monotonic(), event["step"])
                    self._draw()
                case "val":
                    self._val = event
                    self._say(_val_line(event), "bold")
                case "save":
                    self._say(f"saved {event['path']}" + (" (best so far)" if event["best"] else ""), "dim")
                case "skip":
                    self._say(skip_line(event), "yellow")
                case "note":
                    self._say(note_line(event), "yellow" if event["level"] == "warning" else "")
                case "end":
                    self._live.stop()
                    self._say(done_line(event), "bold green" if event["reason"] != "signal" else "bold yellow")

    def close(self) -> None:
        with suppress(OSError):
            self._live.stop()

    def _say(self, text: str, style: str) -> None:
        from rich.text import Text

        self._console.print(Text(text, style), soft_wrap=True)  # style= would also colour the live line

    def _draw(self) -> None:
        now = time.monotonic()
        if now - self._drawn >= 0.1 or self._train["step"] == self._start["steps"]:
            self._live.refresh()
            self._drawn = now

    def _fit(self) -> None:
        """Follows the terminal's width; rich would ask stdin, stdout and stderr, which may all be elsewhere."""
        with suppress(OSError, ValueError):
            self._console.width = os.get_terminal_size(self._stream.fileno()).columns or 80

    def _line(self) -> Text:
        from rich.text import Text

        start, train = self._start, self._train
        if not start:
            return Text()
        step = train.get("step", start["step"])
        epoch = train.get("epoch", step // start["steps_per_epoch"])
        epochs = math.ceil(start["epochs"])
        head = f"epoch {min(epoch + 1, epochs)}/{epochs} "
        room = self._console.width - 1 - len(head)
        tail = "".join(_fitting(self._fields(step), room - min(10, room // 6)))
        width = min(30, room - len(tail))
        done = int(width * step / start["steps"])
        full, rest = ("#", "-") if self._console.options.ascii_only else ("━", "─")
        return Text.assemble(
            (head, "bold"), (full * done, "green"), (rest * (width - done), "dim"), tail, no_wrap=True, overflow="crop"
        )

    def _fields(self, step: int) -> list[tuple[int, str]]:
        """Worth and text of each figure known so far; where the terminal is narrow the least worthy go first."""
        train, val, left = self._train, self._val, self._seconds_left(step)
        return [
            (worth, f"  {text}")
            for worth, known, text in (
                (3, train.get("images_per_s"), f"{_figure(train.get('images_per_s'), ',.0f')} images/s"),
                (1, train.get("wait_share"), f"waiting {_figure(train.get('wait_share'), '.1%')}"),
                (2, train.get("loss"), f"loss {_figure(train.get('loss'), '.4f')}"),
                (4, train.get("top1"), f"accuracy {_figure(train.get('top1'), '.4f')}"),
                (5, val.get("top1"), f"val {_figure(val.get('top1'), '.4f')}"),
                (6, left, f"{_clock(left)} left"),
            )
            if known is not None
        ]

    def _seconds_left(self, step: int) -> float | None:
        """By the pace since the first report, pauses included; by that report's own speed until there is a second."""
        if self._pace_from is None:
            return None
        since, first = self._pace_from
        steps_left = self._start["steps"] - step
        if step > first:
            return steps_left * (time.monotonic() - since) / (step - first)
        speed = self._train["images_per_s"]
        return steps_left * self._start["batch"] / speed if speed else None


def _fitting(fields: list[tuple[int, str]], room: int) -> list[str]:
    """The texts of the worthiest fields that fit into `room` columns, in their order."""
    fields = list(fields)
    while fields and sum(len(text) for _, text in fields) > room:
        fields.remove(min(fields))
    return [text for _, text in fields]


def start_lines(event: Event) -> list[str]:
    """What is about to be trained, by whom, how long, and why it was set up so."""
    lines = [
        f"Recipe   {event['recipe']}",
        f"Model    {event['model']}, {event['parameters']:,} parameters",
        f"Workers  {event['num_ranks']} ({event['strategy']}), batch {event['batch']} images in "
        f"{event['shards']} shard{'s' * (event['shards'] != 1)}",
        f"Length   {event['steps']} steps = {event['epochs']:g} epochs of {event['steps_per_epoch']} steps "
        f"({event['images_per_epoch']:,} images)",
        *([f"Teacher  {teacher_words(event['teacher'])}"] if "teacher" in event else []),
        *(f"Because  {why}" for why in event["why"]),
    ]
    if event["resumed_from"] is not None:
        lines.append(f"Resumed  from step {event['resumed_from']}")
    return lines


def note_line(event: Event) -> str:
    return ("WARNING: " if event["level"] == "warning" else "") + event["text"]


def skip_line(event: Event) -> str:
    """As Apex printed it, two spaces and all: scripts grep for it."""
    if event.get("loss_scale") is None:
        return f"Gradient not finite.  Skipping step {event['step']}"
    if not event["dynamic"]:
        return f"Gradient overflow.  Skipping step, loss scaler 0 stays at loss scale {event['loss_scale']}"
    return f"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {event['loss_scale']}"


def done_line(event: Event) -> str:
    line = (
        f"Done: {_REASONS.get(event['reason'], '')}{event['step']} steps, {event['images']:,} images in "
        f"{_figure(event['program_s'], '.1f')} s ({_figure(event['images_per_s'], ',.1f')} images/s)"
    )
    if event["top1"] is not None:
        line += f", validation accuracy {event['top1']:.4f}"
    if event["best_top1"] is not None:
        line += f", best {event['best_top1']:.4f} at step {event['best_step']}"
    return line


def _val_line(event: Event) -> str:
    weights = ", averaged weights" if event["averaged"] else ""
    return (
        f"epoch {event['epoch'] + 1}: validation accuracy {_figure(event['top1'], '.4f')} "
        f"({event['correct1']} of {event['count']}), loss {_figure(event['loss'], '.4f')}{weights}"
    )


def _figure(value: float | None, form: str) -> str:
    return "nan" if value is None else format(value, form)


def _clock(seconds: float | None) -> str:
    minutes, seconds_left = divmod(round(seconds or 0), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours}:{minutes_left:02}:{seconds_left:02}" if hours else f"{minutes}:{seconds_left:02}"
