"""Pulses: where the workers of one host stand, as their agent sees it; when none of them gets on any more, and why.

Workers act together, so one that hangs holds up all of them within a step. They count as still only when every one of
them has made no progress for longer than it may: nobody is blamed who waits for another's long save.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.launch.pulse import (
    ASK_STACKS,
    LONG,
    MEETS,
    OPENS,
    PULSE,
    STACKS,
    STARTS,
    make_memory,
    make_pulse,
    read_pulse,
)

LATE_S = 20.0
"""After so long, workers that have not met are named."""
START_LEAST_S = 120.0
"""What a worker may take to load its libraries, which a busy machine makes long, however soon a hang is to be told."""
ANSWER_S = 1.0
"""How long a worker may take to write its stacks."""
_LONGEST = 10_000
"""Bytes of stacks that are told."""

Position = dict[str, Any]
"""name, pid, state, phase, step, age_s, stack"""


@dataclass
class _Worker:
    pulse: int
    stacks: int
    pid: int = 0


class Pulses:
    """Of the processes that one was made for; those of other programs have none, and are never still."""

    def __init__(self, hang_s: float | None) -> None:
        """hang_s: the time without progress; None: nobody looks."""
        self._hang_s = hang_s
        self._workers: dict[str, _Worker] = {}
        self._began = time.monotonic()
        self._told_late = False
        self._asked_at: float | None = None
        self._is_still = False

    def make(self, name: str) -> dict[str, int]:
        """Variable -> descriptor, to be handed to the process of that name."""
        worker = self._workers[name] = _Worker(make_pulse(), make_memory("shoal-stacks"))
        return {PULSE: worker.pulse, STACKS: worker.stacks}

    def started(self, pids: Mapping[str, int | None]) -> None:
        """All of a generation run."""
        for name, worker in self._workers.items():
            worker.pid = pids.get(name) or 0
        self._began = time.monotonic()

    def forget(self) -> None:
        """The generation has ended."""
        for worker in self._workers.values():
            os.close(worker.pulse)
            os.close(worker.stacks)
        self._workers = {}
        self._told_late = self._is_still = False
        self._asked_at = None

    def look(self) -> list[tuple[str, list[Position]]]:
        """What there is to tell now: (`late`, `still` or `moving`, positions)."""
        positions = {name: self._position(name, worker) for name, worker in self._workers.items() if worker.pid}
        living = {name: position for name, position in positions.items() if position["state"] not in ("", "Z", "X")}
        told = []
        if not self._told_late and time.monotonic() - self._began > LATE_S:
            self._told_late = True
            if any(position["phase"] in (STARTS, OPENS, MEETS) for position in living.values()):
                told.append(("late", list(living.values())))
        if self._hang_s is not None and living and all(map(self._is_over, living.values())):
            return told + self._tell_still(living)
        if self._is_still:
            told.append(("moving", []))
        self._asked_at, self._is_still = None, False
        return told

    def _tell_still(self, living: dict[str, Position]) -> list[tuple[str, list[Position]]]:
        """Asks for the stacks first, and tells all a moment later, once."""
        if self._is_still:
            return []
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            for name in living:
                self._ask(self._workers[name])
            return []
        if time.monotonic() - self._asked_at < ANSWER_S:
            return []
        self._is_still = True
        for name, position in living.items():
            position["stack"] = os.pread(self._workers[name].stacks, _LONGEST, 0).decode(errors="replace")
        return [("still", list(living.values()))]

    def _is_over(self, position: Position) -> bool:
        limit_s = (self._hang_s or 0.0) * position["patience"]
        return position["age_s"] > (max(limit_s, START_LEAST_S) if position["phase"] == STARTS else limit_s)

    def _ask(self, worker: _Worker) -> None:
        if ASK_STACKS is None or read_pulse(worker.pulse) is None:
            return  # it has not got so far as to know the signal, which would end it
        os.truncate(worker.stacks, 0)
        try:
            os.kill(worker.pid, ASK_STACKS)  # a child that was not reaped: the number is its own
        except ProcessLookupError:
            pass

    def _position(self, name: str, worker: _Worker) -> Position:
        beat = read_pulse(worker.pulse)
        state = _state(worker.pid)
        place = {"name": name, "pid": worker.pid, "state": state, "stack": ""}
        if beat is None:
            age_s = time.monotonic() - self._began
            return {**place, "phase": STARTS, "step": 0, "age_s": age_s, "patience": LONG}
        return {**place, "phase": beat.phase, "step": beat.step, "age_s": beat.age_s, "patience": beat.patience}


def _state(pid: int) -> str:
    """One letter as in /proc; empty where nobody can say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""
