"""Stopwatch: to which part of a step each moment of a worker belongs. None belongs to two: parts sum to the wall.

On a CPU the parts follow one another in time. On a GPU marks are events in its stream: what counts is how long the
device was busy with a part or idle for it, not when the host said so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

PARTS = ("input", "transfer", "compute", "exchange", "waiting", "update", "other")
"""Standing still for images; moving them to the device; forward and backward pass; from a worker's own last gradient
until it has everybody's; for workers who are not there yet; optimizer; the rest (log lines, meters, between steps)."""
INPUT, TRANSFER, COMPUTE, EXCHANGE, WAITING, UPDATE, OTHER = range(len(PARTS))
_PAUSED = len(PARTS)


class Stopwatch:
    """One worker's. `to` says what begins now, `lap` that a step is done, `read` gives the steps since the last."""

    def __init__(self) -> None:
        self.own_s = 0.0
        """Seconds the watch itself has taken: its marks by the price of one, and what `charge` was told."""
        self.marks: list[tuple[int, float]] | None = None
        """What began when (seconds of the performance counter), while somebody wants to know."""
        self._part, self._since = OTHER, time.perf_counter()
        self._is_paused = False
        self._row = [0.0] * (_PAUSED + 1)
        self._rows: list[list[float]] = []
        self._price_s = self._price()

    def _price(self) -> float:
        began = time.perf_counter()
        for _ in range(200):
            self.to(OTHER)
        self.reset()
        return (self._since - began) / 200

    def to(self, part: int) -> None:
        """What follows belongs to `part`; within a pause, to no part."""
        if self._is_paused:
            return
        now = time.perf_counter()
        self._row[self._part] += now - self._since
        self._part, self._since = part, now
        if self.marks is not None:
            self.marks.append((part, now))

    def lap(self) -> None:
        """A step is done; what follows belongs to the next."""
        self.to(OTHER)
        self._rows.append(self._row)
        self._row = [0.0] * (_PAUSED + 1)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside belongs to no step."""
        self.to(_PAUSED)
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False
            self.to(OTHER)

    def reset(self) -> None:
        """Forgets all until now."""
        self.to(OTHER)
        self._row = [0.0] * (_PAUSED + 1)
        self._rows.clear()

    def read(self) -> torch.Tensor:
        """Seconds of each part in each step done since the last call, float64 [steps, parts]."""
        rows, self._rows = self._rows, []
        self.own_s += len(rows) * _MARKS * self._price_s
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, _PAUSED + 1)[:, :_PAUSED]

    @contextmanager
    def charge(self) -> Iterator[None]:
        """What happens inside is done for the watch's sake."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.own_s += time.perf_counter() - began

    @staticmethod
    def of(device: torch.device) -> Stopwatch:
        return DeviceStopwatch() if device.type == "cuda" else Stopwatch()


_MARKS = 8
"""Marks of a step: one for each part, and the lap."""


class DeviceStopwatch(Stopwatch):
    """Marks are events in the device's stream, read when the device has reached them."""

    def __init__(self) -> None:
        self._free: list[torch.cuda.Event] = []
        self._marks: list[tuple[int, torch.cuda.Event, bool]] = []
        super().__init__()

    def _price(self) -> float:
        self._last = self._mark()
        began = time.perf_counter()
        for _ in range(50):
            self.to(OTHER)
        spent = time.perf_counter() - began
        self.reset()
        return spent / 50

    def _mark(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def to(self, part: int) -> None:
        if self._is_paused:
            return
        self._marks.append((self._part, self._mark(), False))
        self._part = part
        if self.marks is not None:
            self.marks.append((part, time.perf_counter()))

    def lap(self) -> None:
        self._marks.append((self._part, self._mark(), True))
        self._part = OTHER

    def reset(self) -> None:
        self.to(OTHER)
        self._resolve()
        self._row = [0.0] * (_PAUSED + 1)
        self._rows.clear()

    def read(self) -> torch.Tensor:
        self._resolve()
        return super().read()

    def _resolve(self) -> None:
        """Waits for the latest mark and turns marks into seconds."""
        marks, self._marks = self._marks, []
        if not marks:
            return
        marks[-1][1].synchronize()
        for part, event, ends in marks:
            self._row[part] += self._last.elapsed_time(event) / 1000
            self._free.append(self._last)
            self._last = event
            if ends:
                self._rows.append(self._row)
                self._row = [0.0] * (_PAUSED + 1)
