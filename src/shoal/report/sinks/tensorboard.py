"""TensorBoard: scalars over optimizer steps, as event files in the run's `tensorboard/`.

Written with TensorBoard's own message types and nothing else of it: its file writer tries to import tensorflow, starts
a thread, and takes five times as long to load.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from functools import cache
from pathlib import Path
from typing import IO, Any

from shoal.base.errors import ShoalError
from shoal.base.run import Run
from shoal.report.sinks import Event, Sink

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
HISTOGRAMS = {"staleness": {"staleness": "counts"}}
"""The same for histograms: the field counts how often 0, 1, 2 … came."""


class TensorBoard(Sink):
    """Writes the scalars of train and val events; x is the step (optimizer steps done), strictly rising per tag.

    `resume_step` as for Jsonl. What earlier processes wrote beyond it (all, for None) is not erased but declared void
    by a SessionLog START message, which TensorBoard honours on reading.
    """

    def __init__(self, run: Run, *, resume_step: int | None) -> None:
        self._folder = run.tensorboard
        self._first_step = 0 if resume_step is None else resume_step + 1
        self._next_step: dict[str, int] = {}
        self._file: IO[bytes] | None = None
        self._closed = False

    def write(self, event: Event) -> None:
        step, scalars = event["step"], {}
        for tag, field in TAGS.get(event["event"], {}).items():
            value = event.get(field)
            if value is not None and step >= self._next_step.get(tag, self._first_step):
                scalars[tag] = value
                self._next_step[tag] = step + 1
        values: list[dict[str, Any]] = [{"tag": tag, "simple_value": value} for tag, value in scalars.items()]
        for tag, field in HISTOGRAMS.get(event["event"], {}).items():
            if event[field] and step >= self._next_step.get(tag, self._first_step):
                values.append({"tag": tag, "histo": _histogram(event[field])})
                self._next_step[tag] = step + 1
        if not values or self._closed:
            return
        try:
            file = self._file or self._begin()
            file.write(_record(step=step, summary={"value": values}))
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
        return self._file


def _stamp(folder: Path) -> int:
    """Seconds since 1970, but later than every file already there: TensorBoard reads them in the order of names."""
    found = (re.match(r"events\.out\.tfevents\.(\d+)\.", path.name) for path in folder.iterdir())
    return max([int(time.time()), *(int(match[1]) + 1 for match in found if match)])


def _histogram(counts: list[int]) -> dict[str, Any]:
    """As TensorBoard's HistogramProto; a bucket ends half-way between two numbers."""
    values = [value for value, count in enumerate(counts) if count]
    return {
        "min": float(min(values, default=0)),
        "max": float(max(values, default=0)),
        "num": float(sum(counts)),
        "sum": float(sum(value * count for value, count in enumerate(counts))),
        "sum_squares": float(sum(value * value * count for value, count in enumerate(counts))),
        "bucket_limit": [value + 0.5 for value in range(-1, len(counts))],
        "bucket": [0.0, *map(float, counts)],
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
