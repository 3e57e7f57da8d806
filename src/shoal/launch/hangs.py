"""Hangs: from where all workers of a job stand, which of them holds up the others; and who is missing at the start."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from shoal.launch.link import Message
from shoal.launch.pulse import MEETS
from shoal.launch.pulses import Position

_STATES = {
    "R": "running",
    "S": "asleep",
    "D": "in the kernel",
    "T": "stopped",
    "t": "stopped by a debugger",
    "I": "idle",
}
_WAITING = ("distributed_c10d.py", "gang.py", "exchange.py", "graph.py")
"""Whose innermost frame lies in one of these waits for the others: a collective, or a backward pass with one in it."""
_TELL_S = 2.0
"""How much later than the first host the last one may tell who is late."""
_FRAMES = 12
"""Lines of the culprit's stack that are told."""


@dataclass(frozen=True)
class Hang:
    """A worker that makes no progress while the others wait for it."""

    name: str
    manner: str
    """In one line."""
    lines: tuple[str, ...]
    """Its stack, and the positions of all others."""


class Hangs:
    """What the agents told, by host."""

    def __init__(self) -> None:
        self._still: dict[str, list[Position]] = {}
        self._late: dict[str, list[Position]] = {}
        self._late_at = 0.0

    def heed(self, host: str, message: Message) -> None:
        what, positions = message["is"], message["positions"]
        if what == "late":
            self._late_at = self._late_at if self._late else time.monotonic()
            self._late[host] = positions
        elif what == "still":
            self._still[host] = positions
        else:
            self._still.pop(host, None)

    def forget(self) -> None:
        """A new generation runs."""
        self._still, self._late = {}, {}

    def late(self, hosts: Collection[str]) -> str:
        """One line that names every worker that has not come to the meeting, once; else empty.

        A host where all have met has nothing to tell.
        """
        if not self._late or time.monotonic() - self._late_at < _TELL_S:
            return ""
        told = [(host, position) for host in hosts for position in self._late.get(host, [])]
        missing = [_short(host, position, len(hosts) > 1) for host, position in told if position["phase"] != MEETS]
        waiting = [position["name"] for _, position in told if position["phase"] == MEETS]
        self._late = {}
        what = f"still on the way: {'; '.join(missing)}" if missing else "all are there, but have not met"
        return f"note: not all workers have met yet; {what}" + (f"; waiting: {', '.join(waiting)}" if waiting else "")

    def found(self, hosts: Collection[str], hang_s: float) -> Hang | None:
        """The hang, once the workers of all `hosts` are still."""
        if not hosts or not set(hosts) <= self._still.keys():
            return None
        told = [(host, position) for host in hosts for position in self._still[host]]
        _, culprit = min(told, key=lambda pair: _innocence(pair[1]))
        several = len(hosts) > 1
        others = [_short(*pair, several) for pair in told if pair[1] is not culprit]
        lines = [*(_stack(culprit["stack"]) or ["(no Python stack: it did not answer the signal that asks for it)"])]
        lines += [f"meanwhile {other}" for other in others]
        return Hang(
            culprit["name"],
            f"no progress for {hang_s:g} s: pid {culprit['pid']}, {_state(culprit)}, {_place(culprit)}",
            tuple(lines),
        )


def _innocence(position: Position) -> tuple[bool, bool, int, float]:
    """The less, the likelier it holds up the others: stopped or stuck in the kernel, not waiting, steps behind, first
    to fall silent."""
    return position["state"] not in ("T", "t", "D"), _waits(position), position["step"], -position["age_s"]


def _waits(position: Position) -> bool:
    frames = [line for line in _main_thread(position["stack"]) if line.lstrip().startswith("File ")]
    return bool(frames) and any(f'{name}"' in frames[0] for name in _WAITING)


def _main_thread(stack: str) -> list[str]:
    """Of faulthandler's list of threads the one that it was asked in: innermost frame first."""
    head, found, rest = stack.partition("Current thread")
    return (rest if found else head).split("\n\n")[0].splitlines()


def _stack(stack: str) -> list[str]:
    lines = [line.rstrip() for line in _main_thread(stack)[1:] if line.strip()]
    return ["stack, innermost first:", *lines[:_FRAMES]] if lines else []


def _short(host: str, position: Position, several: bool) -> str:
    where = f" on {host}" if several else ""
    return f"{position['name']}{where} {_place(position)} for {position['age_s']:.0f} s ({_state(position)})"


def _place(position: Position) -> str:
    return f"{position['phase']} after step {position['step']}" if position["step"] else position["phase"]


def _state(position: Position) -> str:
    state = position["state"]
    return f"state {state}, {_STATES[state]}" if state in _STATES else f"state {state}"
