"""Ending: how one process of a job ended; and from all endings, which of them was the cause."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.base.errors import DONE, FAILED, INTERRUPTED, REQUEUE, USAGE
from shoal.launch.job import Outcome
from shoal.launch.report import Report


@dataclass
class Ending:
    """What is known so far of the end of one process."""

    name: str
    """worker 1"""
    log: Path
    started: bool = False
    status: int | None = None
    """Exit code, or minus the signal that killed it; None while it runs."""
    ended_at: float = 0.0
    """Unix seconds, when its end was noticed."""
    since: float = 0.0
    """Seconds of the monotonic clock at the first sign of its end: a report or the end itself."""
    report: Report | None = None
    told: set[int] = field(default_factory=set)
    """Signals that were passed on to it."""
    killed: bool = False
    """Whether the agent killed it."""
    stuck: bool = False
    """Whether it was killed and did not end."""
    tail: tuple[str, ...] = ()
    """Its last lines of output."""
    host: str = ""
    """Where it ran; empty where that goes without saying."""
    lost: str = ""
    """Why nobody can say how it ended: its host is lost."""
    crash: tuple[str, ...] = ()
    """The traceback of its agent, where that failed."""
    hung: str = ""
    """How it made no progress while the others waited for it."""
    cause: str = ""
    """What the system knows of its end, such as a want of memory."""
    expendable: bool = False
    """The others can go on without it, should it be killed or lost."""

    def reported(self, report: Report) -> None:
        self.report = self.report or report
        self.since = self.since or time.monotonic()

    def ended(self, status: int, at: float | None = None) -> None:
        self.status, self.ended_at = status, time.time() if at is None else at
        self.since = self.since or time.monotonic()
        self.killed = self.killed and status == -signal.SIGKILL

    def vanished(self, why: str, at: float) -> None:
        """Its host is lost, since `at` (unix seconds)."""
        self.lost, self.ended_at = why, at
        self.since = self.since or time.monotonic()

    @property
    def running(self) -> bool:
        return self.started and self.status is None and not self.lost

    @property
    def code(self) -> int | None:
        """Its exit code; to die of a signal that was passed on is to leave, not to fail."""
        if self.lost:
            return FAILED
        if self.killed or self.status is None:
            return self.report.exit_code if self.report else None
        number = -self.status if self.status < 0 else self.status - 128  # shells add 128 to a child's signal
        if number in self.told:
            return INTERRUPTED if number == signal.SIGINT else REQUEUE
        return self.status

    @property
    def left(self) -> bool:
        """It stopped early, in good order."""
        return self.code in (REQUEUE, INTERRUPTED)

    @property
    def spared(self) -> bool:
        """It was killed or lost, and the others go on without it."""
        died = self.status is not None and self.status < 0 and not self.left
        return self.expendable and not self.killed and (bool(self.lost) or died)

    @property
    def failed(self) -> bool:
        return not self.spared and self.code not in (None, DONE, REQUEUE, INTERRUPTED)

    @property
    def collateral(self) -> bool:
        return self.report is not None and self.report.collateral and not self.lost

    @property
    def wrong_at(self) -> float:
        """When it went wrong, unix seconds: its own word for it, else when its end was noticed."""
        return self.report.time if self.report and not self.lost else self.ended_at

    @property
    def manner(self) -> str:
        """not started, running, exit 1, killed by SIGSEGV or by the agent, hangs in the kernel, lost with its host."""
        if self.lost:
            return "lost with its host"
        if self.killed:
            return "killed by the agent"
        if self.stuck:
            return "hangs in the kernel"
        if self.status is None:
            return "running" if self.started else "not started"
        return f"exit {self.status}" if self.status >= 0 else f"killed by {_signal_name(-self.status)}"

    @property
    def place(self) -> str:
        """worker 1 on host2"""
        return f"{self.name} on {self.host}" if self.host else self.name

    def same_as(self, other: Ending) -> bool:
        """Whether both tell of one fault that each met on its own, such as a missing file."""
        told = self.report is not None and other.report is not None and self.report.error == other.report.error
        return told and not self.collateral

    def told_last(self) -> list[str]:
        """The cause of a job's failure, in full."""
        manner = f"{self.manner} (exit {self.status})" if self.status is not None and self.status < 0 else self.manner
        manner = f"{manner}, by {self.cause}" if self.cause else self.lost or manner
        if self.hung:
            manner = self.hung
        elif self.killed and not self.lost:
            manner = "reported an error and did not end by itself"
        what = (self.report.traceback or self.report.error).splitlines() if self.report else self.tail
        return [f"{self.place} failed first: {manner}", *(self.crash or what), f"log: {self.log}"]


def failures(endings: Iterable[Ending]) -> list[Ending]:
    """Those that failed. Where somebody left in good order, losing the connection to them is no failure."""
    endings = list(endings)
    someone_left = any(ending.left for ending in endings)
    return [ending for ending in endings if ending.failed and not (someone_left and ending.collateral)]


def outcome(endings: Sequence[Ending], ordered: Outcome | None = None) -> Outcome:
    """How the job ended. `ordered` is the outcome if somebody had the agent kill what still ran."""
    killed = [ending.name for ending in endings if ending.killed]
    if ordered and (killed or not endings or any(ending.code is None for ending in endings)):
        lines = (f"killed by the agent: {', '.join(killed)}",) if killed else ()
        return Outcome(ordered.exit_code, (*ordered.lines, *lines))
    workers = [ending for ending in endings if ending.name.startswith("worker")]
    if workers and all(ending.spared for ending in workers):  # for nobody
        for ending in workers:
            ending.expendable = False
    failed = failures(endings)
    if failed:
        # A victim often reports before the death of its peer is noticed here, so its own word counts before the clock.
        culprit = min(failed, key=lambda ending: (ending.collateral, ending.wrong_at))
        others = [ending for ending in endings if ending is not culprit and ending.code != DONE]
        alike = [ending for ending in others if ending.same_as(culprit)]
        also = ", ".join(f"{ending.name} ({ending.manner})" for ending in others if ending not in alike)
        lines = [f"also ended because of it: {also}"] if also else []
        lines += [f"the same went wrong in: {', '.join(ending.name for ending in alike)}"] if alike else []
        early = [ending for ending in endings if ending.status == DONE and ending.ended_at <= culprit.wrong_at]
        if culprit.collateral and early:  # whom it misses did not fail
            names = ", ".join(ending.place for ending in early)
            lines.append(f"{names} ended before, with exit 0 as if all were done: look there for the cause")
        lines += culprit.told_last()
        return Outcome(USAGE if culprit.code == USAGE else FAILED, tuple(lines))
    left = {ending.code for ending in endings if ending.left}
    if left:
        lines = (f"killed by the agent, for it did not end with the others: {', '.join(killed)}",) if killed else ()
        return Outcome(INTERRUPTED if INTERRUPTED in left else REQUEUE, lines)
    deaf = [ending for ending in endings if (ending.killed or ending.stuck) and ending.told]
    if deaf:
        names = ", ".join(ending.name for ending in deaf)
        asked = INTERRUPTED if any(signal.SIGINT in ending.told for ending in deaf) else REQUEUE
        return Outcome(asked, (f"killed by the agent, for it did not end when it was told to: {names}",))
    return Outcome(DONE, tuple(f"{one.place} was {one.manner}; the others went on" for one in endings if one.spared))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
