"""TensorBoard: scalars, pictures and histograms over optimizer steps, and the recipe as hparams, as event files in the
run's `tensorboard/`.

Written with TensorBoard's own message types and nothing else of it: its file writer tries to import tensorflow, starts
a thread, and takes five times as long to load.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from shoal.base.errors import ShoalError
from shoal.base.run import Run
from shoal.report.histogram import Histogram
from shoal.report.sinks import Event, Sink

if TYPE_CHECKING:
    from shoal.report.predictions import Predictions

TAGS = {
    "train": {
        "train/loss": "loss",
        "train/top1": "top1",
        "train/top5": "top5",
        "learning_rate": "lr",
        "speed/images_per_s": "images_per_s",
        "speed/wait_share": "wait_share",
    },
    "val": {"val/loss": "loss", "val/top1": "top1", "val/top5": "top5"},
}
"""Event kind -> tag -> the event's field."""
SOME = {
    "train": {
        "loss_scale": "loss_scale",
        "skipped_steps": "skipped",
        "train/loss_label": "loss_label",
        "train/loss_distill": "loss_distill",
    }
}
"""The same for fields that only some trainings have: those with a loss scale, those with a teacher."""
HISTOGRAMS = {"staleness": {"staleness": "counts"}}
"""The same for histograms: the field counts how often 0, 1, 2 … came."""
EXAMPLES = "val/examples"
_STATUS = {"length": "STATUS_SUCCESS", "desired_accuracy": "STATUS_SUCCESS", "signal": "STATUS_FAILURE"}


class TensorBoard(Sink):
    """Writes what it is told; x is the step (optimizer steps done), strictly rising per tag.

    hparams: the recipe's keys; TensorBoard's table of runs has a column for each. No file tells what columns
    there are: TensorBoard then takes those of all runs it finds, which may differ. `resume_step` as for Jsonl. What
    earlier processes wrote beyond it (all, for None) is not erased but declared void
    by a SessionLog START message, which TensorBoard honours on reading.
    """

    def __init__(self, run: Run, *, resume_step: int | None, hparams: Mapping[str, Any] | None = None) -> None:
        self._folder = run.tensorboard
        self._hparams = {key: value for key, value in (hparams or {}).items() if value is not None}
        self._first_step = 0 if resume_step is None else resume_step + 1
        self._next_step: dict[str, int] = {}
        self._workers = 1
        self._file: IO[bytes] | None = None
        self._closed = False

    def write(self, event: Event) -> None:
        kind = event["event"]
        scalars = {tag: event.get(field) for tag, field in (TAGS.get(kind, {}) | SOME.get(kind, {})).items()}
        counted = {tag: event[field] for tag, field in HISTOGRAMS.get(kind, {}).items()}
        values: dict[str, dict[str, Any]] = {
            tag: {"simple_value": value} for tag, value in scalars.items() if value is not None
        }
        values |= {tag: _histogram(Histogram.of_counts(counts)) for tag, counts in counted.items() if counts}
        self._add(event["step"], values)
        if kind == "start":
            self._workers = event["num_ranks"]
        if kind == "end" and self._file is not None and self._hparams:
            self._put(summary={"value": [_session_end(event["reason"])]})

    def show_examples(self, step: int, predictions: Predictions) -> None:
        if step >= self._next(EXAMPLES) and len(predictions.shown):
            from shoal.report.picture import sheet

            png, width, height = sheet(predictions)
            image = {"width": width, "height": height, "colorspace": 3, "encoded_image_string": png}
            self._add(step, {EXAMPLES: {"image": image}})

    def show_histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        self._add(step, {tag: _histogram(histogram) for tag, histogram in histograms.items()})

    def _next(self, tag: str) -> int:
        """The first step for which the tag may still be written."""
        return self._next_step.get(tag, self._first_step)

    def _add(self, step: int, values: Mapping[str, dict[str, Any]]) -> None:
        fresh = {tag: value for tag, value in values.items() if step >= self._next(tag)}
        self._next_step.update(dict.fromkeys(fresh, step + 1))
        if fresh:
            self._put(step=step, summary={"value": [{"tag": tag, **value} for tag, value in fresh.items()]})

    def _put(self, **fields: Any) -> None:
        if self._closed:
            return
        try:
            file = self._file or self._begin()
            file.write(_record(**fields))
            file.flush()
        except OSError as error:
            raise ShoalError(f"{self._folder}: cannot be written ({error.strerror})") from None

    def close(self) -> None:
        self._closed = True
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> IO[bytes]:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{_stamp(self._folder):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._file = open(self._folder / name, "xb")  # noqa: SIM115 - closed by close()
        self._file.write(_record(file_version="brain.Event:2"))
        self._file.write(_record(step=self._first_step, session_log={"status": "START"}))
        if self._hparams:
            self._file.write(_record(summary={"value": [_session_start(self._hparams | {"workers": self._workers})]}))
        return self._file


def _stamp(folder: Path) -> int:
    """Seconds since 1970, but later than every file already there: TensorBoard reads them in the order of names."""
    found = (re.match(r"events\.out\.tfevents\.(\d+)\.", path.name) for path in folder.iterdir())
    return max([int(time.time()), *(int(match[1]) + 1 for match in found if match)])


def _histogram(histogram: Histogram) -> dict[str, Any]:
    """As TensorBoard's HistogramProto."""
    return {
        "histo": {
            "min": histogram.least,
            "max": histogram.most,
            "num": float(histogram.count),
            "sum": histogram.total,
            "sum_squares": histogram.squares,
            "bucket_limit": histogram.limits,
            "bucket": histogram.buckets,
        }
    }


def _session_start(hparams: Mapping[str, Any]) -> dict[str, Any]:
    from google.protobuf.struct_pb2 import Value

    def held(value: Any) -> Value:
        if isinstance(value, bool):
            return Value(bool_value=value)
        if isinstance(value, (int, float)):
            return Value(number_value=value)
        return Value(string_value=value if isinstance(value, str) else json.dumps(value))

    values = {key: held(value) for key, value in hparams.items()}
    return _session("session_start_info", hparams=values, start_time_secs=time.time())


def _session_end(reason: str) -> dict[str, Any]:
    from tensorboard.plugins.hparams import api_pb2

    status = api_pb2.Status.Value(_STATUS.get(reason, "STATUS_UNKNOWN"))  # type: ignore[attr-defined]
    return _session("session_end_info", status=status, end_time_secs=time.time())


def _session(kind: str, **fields: Any) -> dict[str, Any]:
    """A summary of the hparams plugin: all it says is in the metadata, the value is an empty tensor."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData  # type: ignore[attr-defined]

    content = HParamsPluginData(version=0, **{kind: fields}).SerializeToString()
    return {
        "tag": f"_hparams_/{kind}",
        "metadata": {"plugin_data": {"plugin_name": "hparams", "content": content}},
        "tensor": {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": 0}]}},
    }


def _record(**fields: Any) -> bytes:
    """An Event message of now in TFRecord's frame: length, its checksum, data, its checksum, all little-endian."""
    from tensorboard.compat.proto.event_pb2 import Event as Message  # pyright: ignore[reportAttributeAccessIssue]

    data = Message(wall_time=time.time(), **fields).SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    """TFRecord's masked CRC-32C."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _crc_table() -> tuple[int, ...]:
    def entry(crc: int) -> int:
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        return crc

    return tuple(entry(byte) for byte in range(256))
