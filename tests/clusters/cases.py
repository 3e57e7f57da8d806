"""Cases of the chaos test: what is struck, how and when; and what is promised then."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

SILENCE_S = 3.0
CLOSED_S = 5.0
START_S = 30.0
"""What a host may take to answer at all."""
AGAIN_S = 30.0
"""What a training may take to go on from its newest checkpoint, or to save its state and to stop, on a machine where
its first start took no longer than half of that."""
LONG_S = 10 * SILENCE_S
"""How long nobody looks for a hang while a worker saves."""
PROCESSES = ("launcher", "agent", "warden", "worker", "data worker", "server", "ssh")
SIGNALS = ("KILL", "STOP", "TERM")
EVENTS = (
    *((target, how) for target in PROCESSES for how in SIGNALS),
    ("sshd", "KILL"),
    ("cable", "cut"),
    ("host", "off"),
)
"""All there is."""
TRAINED = tuple(event for event in EVENTS if event[0] not in ("data worker", "server"))
"""Those that a training of two workers has."""
UNNOTICED = {
    ("worker", "STOP"),
    ("server", "STOP"),
    ("data worker", "STOP"),
    ("data worker", "KILL"),
    ("data worker", "TERM"),
}
"""A program of somebody else's goes on, whatever becomes of its children; then the launcher is killed."""
SILENT = {(target, "STOP") for target in ("launcher", "agent", "warden", "ssh")} | {("cable", "cut")}
"""Nothing closes: only the missing beat tells."""
FATAL = {("launcher", "KILL"), ("launcher", "STOP")}
"""What a training cannot go on after."""
STOPPING = {("launcher", "TERM"), ("agent", "TERM"), ("warden", "TERM"), ("worker", "TERM")}
"""What has a training save its state and stop."""


@dataclass(frozen=True)
class Case:
    """What is struck, how, and when."""

    target: str
    how: str
    early: bool = False
    """While the job starts, not when all of it runs."""
    local: bool = False
    """One of the two hosts is the launcher's own."""
    delay_s: float = 0.0
    trains: bool = False
    """The job is a training that may restart, not a small script."""

    @property
    def event(self) -> tuple[str, str]:
        return self.target, self.how

    @property
    def name(self) -> str:
        words = [self.target, self.how, "early" * self.early, "local" * self.local, "train" * self.trains]
        return "-".join(filter(None, words))

    @property
    def limit_s(self) -> float:
        """From the strike until nothing is left, or until the training goes on."""
        if self.trains and self.event not in FATAL:
            return AGAIN_S + (LONG_S if self.event == ("worker", "STOP") else 0.0)
        if self.early and self.target in ("ssh", "sshd", "cable", "host"):
            return CLOSED_S + START_S  # who does not answer is told when all others have
        return CLOSED_S + (SILENCE_S if self.event in SILENT else 0.0)


@dataclass
class Seen:
    """What came of a case."""

    case: Case
    seconds: float = 0.0
    """From the event until nothing was left, or until the training went on."""
    code: int | None = None
    faults: list[str] = field(default_factory=list)
    said: str = ""


def cases(count: int, seed: int, *, trainings: int = 0) -> list[Case]:
    """Every event in turn, in random order, early or late, with and without the launcher's host; of all `count`, so
    many `trainings`."""
    draw = random.Random(seed)
    chosen = _draw(draw, EVENTS, count - trainings, trains=False)
    chosen += _draw(draw, TRAINED, trainings, trains=True)
    draw.shuffle(chosen)
    return chosen


def _draw(draw: random.Random, events: Sequence[tuple[str, str]], count: int, *, trains: bool) -> list[Case]:
    chosen: list[Case] = []
    while len(chosen) < count:
        turn = list(events)
        draw.shuffle(turn)
        for target, how in turn:
            local = draw.random() < 0.3 and target not in ("ssh", "sshd", "cable", "host")
            early = draw.random() < 0.25 and (target, how) not in UNNOTICED and not trains
            chosen.append(Case(target, how, early, local, draw.random(), trains))
    return chosen[:count]
