"""Pulse: where a worker stands, in a piece of memory that the agent looks at whenever it likes.

The agent makes it and hands it over, so that nothing is left of it in any folder. A beat is one copy of 96 bytes: no
system call, no waiting. What a worker does while it makes no beat any more is told by `stacks_on_signal`, even where C
code holds Python's lock.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

PULSE, STACKS = "SHOAL_PULSE_FD", "SHOAL_STACKS_FD"
"""The variables that hold the descriptors of the pulse, and of the memory that takes a worker's stacks."""
ASK_STACKS = getattr(signal, "SIGUSR2", None)
"""The signal that has a worker write its stacks."""
STARTS, OPENS, MEETS = "starts", "opens its data", "waits for the others"
"""The phases before all workers have met."""
LONG = 10.0
"""The patience for what may take many times as long as a step: opening data, compiling, saving."""

_BEAT = struct.Struct("<dqqd64s")  # monotonic seconds, pid, step, patience, phase


@dataclass(frozen=True)
class Beat:
    """The last sign of progress."""

    phase: str
    step: int
    """Steps done."""
    age_s: float
    pid: int
    patience: float = 1.0
    """How many times the usual time this phase may take."""


class Pulse:
    """A worker's own; without a descriptor it does nothing."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._map = mmap.mmap(descriptor, _BEAT.size) if descriptor is not None else None
        self._pid = os.getpid()

    @staticmethod
    def from_env(env: Mapping[str, str]) -> Pulse:
        """The pulse that the agent wants; one that does nothing where none is wanted or can be made."""
        try:
            return Pulse(int(env[PULSE]) if PULSE in env else None)
        except (OSError, ValueError):
            return Pulse()

    def beat(self, phase: str, step: int, patience: float = 1.0) -> None:
        """`phase` begins, after `step` steps."""
        if self._map is not None:
            # A reader may see half of it; that tells as much, and the next look sees the whole.
            _BEAT.pack_into(self._map, 0, time.monotonic(), self._pid, step, patience, phase.encode()[:64])


def make_memory(name: str) -> int:
    """A descriptor of memory that goes with the last process that holds it; what is written comes behind the rest."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name)
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    return descriptor


def make_pulse() -> int:
    """A descriptor for `Pulse`."""
    descriptor = make_memory("shoal-pulse")
    os.truncate(descriptor, _BEAT.size)
    return descriptor


def read_pulse(descriptor: int) -> Beat | None:
    """The last beat; None where there was none yet."""
    at, pid, step, patience, phase = _BEAT.unpack(os.pread(descriptor, _BEAT.size, 0))
    if not pid:
        return None
    age_s = max(0.0, time.monotonic() - at)
    return Beat(phase.rstrip(b"\0").decode(errors="replace"), step, age_s, pid, patience)


def stacks_on_signal(env: Mapping[str, str]) -> None:
    """Has ASK_STACKS write the Python stacks of all threads to where the agent wants them, if it does."""
    if STACKS in env and ASK_STACKS is not None:
        import faulthandler

        faulthandler.register(ASK_STACKS, int(env[STACKS]), all_threads=True)
