"""Sinks: what a log's reader greps, what survives a kill, what TensorBoard reads back, what a terminal shows."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections import Counter
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from a_training import END, EPOCH, SAVE, START, TRAIN, VAL, predictions, write_all
from PIL import Image

import shoal
from shoal.base.errors import ShoalError
from shoal.base.run import Run
from shoal.report.histogram import Histogram
from shoal.report.sinks import Event, Sink, Sinks
from shoal.report.sinks.console import Bar, Plain, console_sink
from shoal.report.sinks.jsonl import Jsonl
from shoal.report.sinks.tensorboard import TAGS, TensorBoard


def note(text: str, level: str = "info", step: int = 0) -> Event:
    return {"event": "note", "step": step, "level": level, "text": text}


def plain(*events: Event) -> list[str]:
    stream = io.StringIO()
    with Plain(stream) as sink:
        for event in events:
            sink.write(event)
    return stream.getvalue().splitlines()


def test_the_old_lines() -> None:
    assert plain(TRAIN, EPOCH, SAVE, VAL, note("slow disk"), note("no GPU", "warning")) == [
        "Epoch[0] Batch [20] Speed: 223.74 samples/sec accuracy=0.168155",
        "Epoch[0] Train-accuracy=0.391701",
        "Epoch[0] Time cost=6.423",
        'Saved checkpoint to "runs/x/checkpoints/step-00000023"',
        "Epoch[0] Validation-accuracy=0.974930",
        "slow disk",
        "WARNING: no GPU",
    ]


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (r".*Epoch\[(\d+)\] Train-accuracy.*=([.\d]+)", 0.391701),
        (r".*Epoch\[(\d+)\] Validation-accuracy=([.\d]+)", 0.97493),
        (r".*Epoch\[(\d+)\] Time.*=([.\d]+)", 6.423),
    ],
)
def test_mxnets_parse_log_reads_them(form: str, value: float) -> None:
    found = [match for line in plain(START, TRAIN, EPOCH, VAL, SAVE, END) if (match := re.match(form, line))]
    assert [(int(match[1]), float(match[2])) for match in found] == [(0, value)]


def test_what_was_not_measured_is_nan_in_a_log() -> None:
    assert plain(EPOCH | {"top1": None})[0] == "Epoch[0] Train-accuracy=nan"
    assert plain(END | dict.fromkeys(("top1", "best_top1", "best_step", "images_per_s"))) == [
        "Done: 46 steps, 2,876 images in 16.0 s (nan images/s)"
    ]


def test_start_and_end() -> None:
    assert plain(START | {"resumed_from": 23}, END | {"reason": "desired_accuracy"}) == [
        "Recipe   digits",
        "Model    digits-cnn, 33,338 parameters",
        "Workers  2 (ddp), batch 64 images in 4 shards",
        "Length   46 steps = 2 epochs of 23 steps (1,438 images)",
        "Because  threads: 1 per worker (2 cores, 2 workers)",
        "Resumed  from step 23",
        "Done: desired accuracy reached after 46 steps, 2,876 images in 16.0 s (1,169.0 images/s), "
        "validation accuracy 0.9920, best 0.9920 at step 46",
    ]


def test_a_reader_that_goes_away_does_not_stop_training() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    sink = Plain(stream)
    sink.write(VAL)
    sink.close()
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_sinks_fan_out_and_all_close_even_when_one_fails() -> None:
    seen: list[object] = []

    class Note(Sink):
        def __init__(self, name: str) -> None:
            self.name = name

        def write(self, event: Event) -> None:
            seen.append((self.name, event["event"]))

        def close(self) -> None:
            seen.append(self.name)
            if self.name == "a":
                raise ShoalError("disk full")

    with pytest.raises(ShoalError, match="disk full"), Sinks([Note("a"), Note("b")]) as sinks:
        sinks.write(VAL)
    assert seen == [("a", "val"), ("b", "val"), "a", "b"]


def steps_of(run: Run) -> list[tuple[str, int]]:
    return [(event["event"], event["step"]) for event in run.read_metrics()]


def test_jsonl_is_readable_while_it_grows(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    with Jsonl(run, resume_step=None) as sink:
        sink.write(START)
        assert run.read_metrics() == [START]
        sink.write(VAL)
        assert run.read_metrics() == [START, VAL]


def test_jsonl_of_a_killed_and_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    first, second = (TRAIN, EPOCH, VAL, SAVE), (TRAIN | {"step": 40}, VAL | {"step": 46}, SAVE | {"step": 46}, END)
    whole, killed = Run(tmp_path / "whole"), Run(tmp_path / "killed")
    write_all(Jsonl(whole, resume_step=None), START, *first, *second)
    write_all(Jsonl(killed, resume_step=None), START, *first, second[0], END | {"step": 23, "reason": "signal"})
    with killed.metrics_file.open("a") as file:
        file.write('{"event": "val", "step": 2')
    again = START | {"step": 23, "resumed_from": 23}
    write_all(Jsonl(killed, resume_step=23), again, *second)
    lines, expected = killed.metrics_file.read_text().splitlines(), whole.metrics_file.read_text().splitlines()
    assert lines[: 1 + len(first)] == expected[: 1 + len(first)]
    assert json.loads(lines.pop(1 + len(first))) == again
    assert lines == expected


def test_jsonl_begins_anew_without_a_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path)
    write_all(Jsonl(run, resume_step=None), START, TRAIN)
    write_all(Jsonl(run, resume_step=None), START)
    assert steps_of(run) == [("start", 0)]
    run.metrics_file.unlink()
    write_all(Jsonl(run, resume_step=23), START)
    assert steps_of(run) == [("start", 0)]


def test_jsonl_takes_no_nan_and_names_a_place_it_cannot_write(tmp_path: Path) -> None:
    with Jsonl(Run(tmp_path), resume_step=None) as sink, pytest.raises(ValueError, match="JSON"):
        sink.write(VAL | {"loss": float("nan")})
    (tmp_path / "file").touch()
    with pytest.raises(ShoalError, match=r"file/run/metrics\.jsonl: cannot be written"):
        Jsonl(Run(tmp_path / "file" / "run"), resume_step=None)


def scalars(run: Run) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(run.tensorboard)).Reload()
    return {tag: [(point.step, point.value) for point in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_tensorboard_reads_back_every_tag(tmp_path: Path) -> None:
    run = Run(tmp_path)
    write_all(TensorBoard(run, resume_step=None), START, TRAIN, EPOCH, VAL, SAVE, END)
    expected = {
        tag: [(event["step"], pytest.approx(event[field]))]
        for event in (TRAIN, VAL)
        for tag, field in TAGS[event["event"]].items()
    }
    assert scalars(run) == expected


def test_tensorboard_has_the_loss_scale_where_there_is_one(tmp_path: Path) -> None:
    run = Run(tmp_path)
    write_all(TensorBoard(run, resume_step=None), START, TRAIN | {"loss_scale": 1024.0, "skipped": 3})
    assert scalars(run)["loss_scale"] == [(20, 1024.0)] and scalars(run)["skipped_steps"] == [(20, 3.0)]


def test_tensorboard_rises_strictly_across_resumes(tmp_path: Path) -> None:
    run = Run(tmp_path)

    def train(step: int, loss: float | None) -> Event:
        return TRAIN | {"step": step, "loss": loss}

    write_all(TensorBoard(run, resume_step=None), START, train(10, 9.0))
    write_all(
        TensorBoard(run, resume_step=None), train(10, 1), train(20, 2), train(20, 9), VAL, train(30, 9), train(40, 9)
    )
    for file in run.tensorboard.iterdir():
        with file.open("ab") as cut:
            cut.write(b"\x1f\x00\x00")
    write_all(TensorBoard(run, resume_step=23), VAL, train(30, 3), train(40, None), train(50, 5))
    read = scalars(run)
    assert read["train/loss"] == [(10, 1), (20, 2), (30, 3), (50, 5)]
    assert [step for step, _ in read["learning_rate"]] == [10, 20, 30, 40, 50]
    assert [step for step, _ in read["val/top1"]] == [23]


def read_back(run: Run) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run.tensorboard)).Reload()


def test_tensorboard_shows_examples_and_histograms_once_per_step(tmp_path: Path) -> None:
    run, held = Run(tmp_path), predictions()
    counts = Histogram.of_counts([3, 0, 1])
    with TensorBoard(run, resume_step=None) as sink:
        for step in (23, 46, 46):
            sink.show_examples(step, held)
            sink.show_histograms(step, {"weights/a": counts, "gradients/a": counts})
        sink.show_examples(69, held.with_pictures(held.shown[:0], held.pictures[:0]))
    read = read_back(run)
    assert sorted(read.Tags()["histograms"]) == ["gradients/a", "weights/a"]
    told = [(event.step, event.histogram_value) for event in read.Histograms("weights/a")]
    (step, of) = told[-1]
    assert step == 46
    assert (of.min, of.max, of.num, of.sum, of.sum_squares) == (0, 2, 4, 2, 4)
    with TensorBoard(run, resume_step=23) as sink:
        sink.show_examples(23, held)
        sink.show_examples(46, held)
    read = read_back(run)
    images = read.Images("val/examples")
    assert [image.step for image in images] == [23, 46]
    picture = Image.open(io.BytesIO(images[0].encoded_image_string))
    assert picture.size == (images[0].width, images[0].height) == (4 * 112, 3 * 138)


def test_tensorboard_has_the_recipe_and_the_end_as_hparams(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams import metadata

    keys = {"optim.lr": 0.1, "batch": 64, "norm": "shard", "drop_last": False, "ema": None, "scale": [0.5, 1]}
    for reason, status in (("length", 1), ("signal", 2)):
        run = Run(tmp_path / reason)
        write_all(TensorBoard(run, resume_step=None, hparams=keys), START, TRAIN, VAL, END | {"reason": reason})
        read = read_back(run)
        content = read.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
        told = metadata.parse_session_start_info_plugin_data(content).hparams
        assert {key: getattr(value, value.WhichOneof("kind")) for key, value in told.items()} == {
            "optim.lr": 0.1, "batch": 64, "norm": "shard", "drop_last": False, "scale": "[0.5, 1]", "workers": 2,
        }  # fmt: skip
        content = read.SummaryMetadata(metadata.SESSION_END_INFO_TAG).plugin_data.content
        assert metadata.parse_session_end_info_plugin_data(content).status == status


def test_tensorboard_makes_nothing_before_the_first_scalar(tmp_path: Path) -> None:
    run = Run(tmp_path)
    sink = TensorBoard(run, resume_step=None)
    sink.write(START)
    sink.close()
    sink.close()
    assert not run.tensorboard.exists()


def test_report_needs_no_torch_and_loads_nothing_heavy_before_it_is_used(tmp_path: Path) -> None:
    program = f"""
import io, sys
from pathlib import Path
from shoal.base.run import Run
from shoal.report import plots, tables
from shoal.report.sinks import Sinks, console, jsonl, tensorboard
heavy = [name for name in ("rich", "matplotlib", "tensorboard", "google.protobuf", "numpy") if name in sys.modules]
assert not heavy, heavy
run = Run(Path({str(tmp_path)!r}))
out = io.StringIO()
sinks = [jsonl.Jsonl(run, resume_step=None), tensorboard.TensorBoard(run, resume_step=None)]
assert "tensorboard" not in sys.modules
with Sinks([*sinks, console.Plain(out), console.Bar(out)]) as sink:
    for event in {[START, TRAIN, EPOCH, VAL, SAVE, END]!r}:
        sink.write(event)
assert not {{"grpc", "numpy"}} & sys.modules.keys(), "tensorboard came with more than its messages"
plots.curves(run)
tables.summary(run)
assert "matplotlib.pyplot" not in sys.modules
assert not {{"torch", "tensorflow"}} & sys.modules.keys()
"""
    env = os.environ | {"PYTHONPATH": str(Path(shoal.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", program], env=env, check=True)


class Terminal:
    """A terminal of a given width whose output can be read back."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.master, self.slave = pty.openpty()
        ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.stream = os.fdopen(self.slave, "w", encoding="utf-8")

    def read(self) -> str:
        self.stream.flush()
        os.set_blocking(self.master, False)
        output = b""
        try:
            while chunk := os.read(self.master, 65536):
                output += chunk
        except BlockingIOError:
            return output.decode()
        return output.decode()

    def close(self) -> None:
        self.stream.close()
        os.close(self.master)


CONTROL = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")


def lines(output: str) -> list[str]:
    return [line for line in re.split(r"[\r\n]+", CONTROL.sub("", output)) if line]


@pytest.fixture(params=[40, 80, 160])
def terminal(request: pytest.FixtureRequest):
    terminal = Terminal(request.param)
    yield terminal
    terminal.close()


def test_bar_on_a_terminal(terminal) -> None:
    sink = Bar(terminal.stream)
    sink.write(START)
    begun = terminal.read()
    assert lines(begun)[0] == "Recipe   digits"
    assert begun.rfind("\x1b[?25h") > begun.rfind("\x1b[?25l"), "a kill would leave the cursor hidden"
    sink.write(TRAIN)
    live = lines(terminal.read())[-1]
    assert live.startswith("epoch 1/2 ━")
    assert len(live) < terminal.columns
    assert live.endswith(" left")
    if terminal.columns == 160:
        for figure in ("224 images/s", "waiting 0.3%", "loss 2.1000", "accuracy 0.1682"):
            assert figure in live
    sink.write(VAL)
    sink.write(SAVE)
    sink.write(note("no GPU", "warning"))
    sink.write(TRAIN | {"step": 46, "epoch": 1})
    shown = lines(terminal.read())
    for permanent in (
        "epoch 1: validation accuracy 0.9749 (350 of 359), loss 0.3000",
        "saved runs/x/checkpoints/step-00000023 (best so far)",
        "WARNING: no GPU",
    ):
        assert permanent in shown
    assert shown[-1].startswith("epoch 2/2 ━")
    assert "val 0.9749" in shown[-1]
    sink.write(END)
    sink.close()
    assert lines(terminal.read())[-1].startswith("Done: 46 steps")


def test_bar_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for color, env in ((True, ""), (False, "1")):
        terminal = Terminal(120)
        monkeypatch.setattr(sys, "stderr", terminal.stream)
        with console_sink({"TERM": "xterm", "NO_COLOR": env}) as sink:
            sink.write(START)
            sink.write(TRAIN)
            output = terminal.read()
        assert ("\x1b[32m" in output or ";32m" in output) == color
        terminal.close()


def test_console_sink_suits_its_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, out, err = Terminal(100), io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert isinstance(console_sink({"TERM": "xterm"}), Plain)
    assert isinstance(console_sink({"SHOAL_CONSOLE_FD": "9999", "TERM": "xterm"}), Plain)
    with console_sink({"SHOAL_CONSOLE_FD": str(terminal.slave), "TERM": "xterm"}) as sink:
        for event in (START, TRAIN, EPOCH, VAL, END):
            sink.write(event)
    assert Counter(out.getvalue().splitlines())["Epoch[0] Validation-accuracy=0.974930"] == 1
    shown = terminal.read()
    assert "epoch 1: validation accuracy 0.9749" in shown
    assert "Epoch[0]" not in shown
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    assert isinstance(console_sink({"TERM": "xterm"}), Bar)
    assert isinstance(console_sink({"TERM": "dumb"}), Plain)
    assert err.getvalue() == ""
    terminal.close()
