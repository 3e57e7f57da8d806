"""Tracing: some steps of all workers on one time line, for Perfetto or chrome://tracing: the parts of each step, and
beneath them what torch did (its profiler's events)."""

from __future__ import annotations

import gzip
import json
import platform
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from shoal.base.files import write_whole
from shoal.step.gang import Gang
from shoal.step.stopwatch import PARTS

SETTLE = 10
"""Steps that pass before the first traced one: the first are not like the others."""
_ROOM = 1000
"""Process numbers in the trace that belong to one worker; its parts have the first."""
_KEPT = "XMsf"
"""Phases of events that are kept: spans, names, and arrows from a forward operator to its backward one."""


class Tracing:
    """One worker's recording. All workers make one, and save it together."""

    def __init__(self, gang: Gang, steps: int) -> None:
        self._gang, self._left, self._before = gang, steps, SETTLE
        self._profile: torch.profiler.profile | None = None
        self._events: list[dict[str, Any]] = []

    def lap(self) -> None:
        """A step is done."""
        if self._before:
            self._before -= 1
            if not self._before:
                self._begin()
        elif self._profile is not None:
            self._left -= 1
            if not self._left:
                self._end()

    def save(self, path: Path) -> None:
        """Writes what all have recorded, gzipped JSON in Chrome's trace format. A collective."""
        if self._profile is not None:
            self._end()
        own = gzip.compress(json.dumps(self._events).encode())
        longest = torch.tensor([len(own)], dtype=torch.int64)
        sizes = [int(size) for size in self._gang.gather(longest.to(self._gang.device))]
        held = torch.zeros(max(sizes), dtype=torch.uint8)
        held[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        told = self._gang.gather(held.to(self._gang.device))
        if self._gang.leads:
            pieces = [piece.cpu().numpy().tobytes()[:size] for piece, size in zip(told, sizes, strict=True)]
            events = [event for piece in pieces for event in json.loads(gzip.decompress(piece))]
            write_whole(path, gzip.compress(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode()))

    def _begin(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._gang.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(activities=activities)
        self._profile.start()
        self._gang.watch.marks = []

    def _end(self) -> None:
        profile, self._profile = self._profile, None
        assert profile is not None
        marks, self._gang.watch.marks = self._gang.watch.marks or [], None
        profile.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(path))
            told = json.loads(path.read_text())
        first = self._gang.rank * _ROOM
        self._events = _parts(marks, first) + _operators(told, first + 1)
        where = f"worker {self._gang.rank} on {platform.node()}"
        for number in sorted({event["pid"] for event in self._events}):
            what = "parts of a step" if number == first else "torch"
            self._events.append(_named("process_name", number, f"{where}: {what}"))
            self._events.append({**_named("process_sort_index", number, ""), "args": {"sort_index": number}})


def _parts(marks: list[tuple[int, float]], pid: int) -> list[dict[str, Any]]:
    """The stopwatch's marks (part, seconds of the performance counter) as spans, in microseconds of unix time."""
    to_unix_s = time.time() - time.perf_counter()
    return [
        {
            "ph": "X",
            "name": PARTS[part],
            "pid": pid,
            "tid": pid,
            "ts": round((began + to_unix_s) * 1e6, 3),
            "dur": round((ended - began) * 1e6, 3),
        }
        for (part, began), (_, ended) in pairwise(marks)
        if part < len(PARTS) and ended > began
    ]


def _operators(told: dict[str, Any], first: int) -> list[dict[str, Any]]:
    """The profiler's events on unix time, with process numbers from `first` on."""
    base_us = told.get("baseTimeNanoseconds", 0) / 1000
    found = [event for event in told["traceEvents"] if event["ph"] in _KEPT and isinstance(event.get("pid"), int)]
    used = sorted({event["pid"] for event in found if event["ph"] == "X"})
    numbers = {pid: first + index for index, pid in enumerate(used)}
    return [
        {**event, "pid": numbers[event["pid"]], "ts": round(event["ts"] + base_us, 3)}
        for event in found
        if event["pid"] in numbers and event["name"] not in ("process_name", "process_labels", "process_sort_index")
    ]


def _named(kind: str, pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": 0, "args": {"name": name}}
