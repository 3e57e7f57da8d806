"""Queue: an engine that takes whole jobs: submits one, says how it is, cancels it. What is submitted is this very
command once more, to be the launcher inside the job."""

from __future__ import annotations

import json
import sys
import time
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import msgspec

from shoal.base.errors import DONE, FAILED, INTERRUPTED, ShoalError, shown_path
from shoal.base.files import write_whole
from shoal.base.run import Run
from shoal.launch.job import Outcome, Plan
from shoal.launch.launcher import Launcher

TOLD_S = 5.0
"""A job that waits for so long is told of."""
_LOOK_S, _READ_S = (1.0, 5.0), 0.25
"""How often to ask the engine, at first and later; how often to look for new output."""


@dataclass(frozen=True)
class State:
    """How a submitted job is, in the engine's words."""

    word: str
    """PENDING, RUNNING, COMPLETED, qw …"""
    why: str = ""
    """What it waits for, or why it ended."""
    code: int | None = None
    """The exit code of a job that has ended."""
    waits: bool = False
    restarts: int = 0

    @property
    def text(self) -> str:
        return f"{self.word} ({self.why})" if self.why else self.word


class Queue(Launcher, frozen=True, kw_only=True):
    """A launcher that can submit."""

    CALLED: ClassVar[str] = ""
    """As people call the engine."""

    @abstractmethod
    def submit(self, plan: Plan) -> str:
        """Hands `plan` to the engine; the job's number or name there. ShoalError with the engine's own words."""

    @abstractmethod
    def look(self, number: str) -> State:
        """How a job is now; ShoalError where the engine does not answer."""

    @abstractmethod
    def cancel(self, number: str) -> None:
        """Ends a job, the engine's own way."""

    def output(self, run: Run, number: str) -> tuple[Path, Path]:
        """Files where the job's stdout and stderr go, seen from here."""
        return run.engine_log(f"{self.name}-{number}"), run.engine_log(f"{self.name}-{number}-err")


def submitted(run: Run) -> tuple[Queue, str] | None:
    """The engine that a run was handed to last, and the job's number there."""
    from shoal.recipe.check import Fault, part

    try:
        noted = json.loads(run.submitted.read_text())
        faults: list[Fault] = []
        queue: Any = part("launchers", noted["launcher"], ("launcher",), faults)
        return None if faults or not isinstance(queue, Queue) else (queue, str(noted["number"]))
    except (OSError, ValueError, KeyError):
        return None


class Submitted:
    """A Handle on a submitted job: the engine runs it, whatever becomes of this process."""

    def __init__(self, queue: Queue, plan: Plan) -> None:
        self._queue, self._plan = queue, plan
        self._run = Run(plan.job.run)
        self._number = queue.submit(plan)
        self._cancelled = False
        noted = {"launcher": msgspec.to_builtins(queue), "number": self._number}
        write_whole(self._run.submitted, json.dumps(noted) + "\n")

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Shows what the job says until it has ended; at once where the job is to be left alone."""
        called, folder = f"{self._queue.CALLED} job {self._number}", shown_path(self._run.folder)
        if self._plan.job.detach:
            return Outcome(DONE, (f"submitted as {called}; shoal ps {folder} | shoal stop {folder}",))
        _say(f"submitted as {called}; Ctrl-C cancels it, --detach would leave it alone")
        try:
            state = self._follow(None if timeout_s is None else time.monotonic() + timeout_s)
        except KeyboardInterrupt:
            self.cancel()
            return Outcome(INTERRUPTED, (f"{called} is cancelled",))
        if state.code is None:
            self.cancel()
            return Outcome(FAILED, (f"not done after {timeout_s:g} s; {called} is cancelled",))
        if self._cancelled:
            return Outcome(INTERRUPTED, (f"{called} is cancelled",))
        if state.code == DONE:
            return Outcome(DONE)
        lines = [f"{called}: {state.text}"]
        files = self._queue.output(self._run, self._number)
        if state.word != "CANCELLED" and not any(path.exists() for path in files):
            lines.append(
                f"nothing came to {shown_path(files[1])}; does the run folder lie on storage that nodes share?"
            )
        return Outcome(state.code, tuple(lines))

    def status(self) -> dict[str, str]:
        return {f"{self._queue.CALLED} job {self._number}": self._queue.look(self._number).text}

    def cancel(self) -> None:
        self._cancelled = True
        self._queue.cancel(self._number)

    def _follow(self, limit: float | None) -> State:
        out, err = (Tail(path) for path in self._queue.output(self._run, self._number))
        began = looked = time.monotonic()
        state, told, restarts = self._queue.look(self._number), "", 0
        while state.code is None and (limit is None or time.monotonic() < limit):
            out.show(sys.stdout.buffer)
            err.show(sys.stderr.buffer)
            time.sleep(_READ_S)
            now = time.monotonic()
            if state.waits and now - began > TOLD_S and state.text != told:
                told = state.text
                _say(f"{self._queue.CALLED} job {self._number} waits: {told}")
            if state.restarts > restarts:
                restarts = state.restarts
                _say(f"{self._queue.CALLED} job {self._number} was put back into the queue (restart {restarts})")
            if now - looked >= _LOOK_S[now - began > 30]:
                looked = now
                with suppress(ShoalError):  # an engine may be away for a while
                    state = self._queue.look(self._number)
        for tail, to in ((out, sys.stdout.buffer), (err, sys.stderr.buffer)):
            tail.show(to)
        return state


class Tail:
    """A file that grows, maybe on another host."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def show(self, to: BinaryIO) -> None:
        """What is new."""
        with suppress(OSError), open(self._path, "rb") as file:
            file.seek(self._at)
            data = file.read()
            self._at += len(data)
            to.write(data)
            to.flush()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
