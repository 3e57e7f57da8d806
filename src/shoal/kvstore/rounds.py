"""Rounds: who is there, and what they do together. Every wait ends, in a result or in who waits for whom."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.kvstore.layout import Limits

GRACE_S, LAST_GRACE_S = 1.0, 3.0
"""A worker whose connection broke has so long to come back before it counts as dead; the longer, where that would be
the end for all: after a rollback everybody comes anew, on a busy machine slowly. Less than what the launcher gives to
servers after a failure (SERVED_REPORT_S), or nobody hears of it."""


class GaveUp(Exception):
    """The text says who waits for whom; it is told to the worker."""


class FellBehind(Exception):
    """The worker has not yet gone back to the checkpoint that the others begin again from."""


@dataclass
class Member:
    """A worker, as the server knows it."""

    rank: int
    state: Literal["absent", "here", "lost", "dead", "left"] = "absent"
    host: str = "?"
    session: bytes = b""
    since: float = field(default_factory=time.monotonic)
    """Of its state."""
    rollbacks: int = 0
    answered: dict[Hashable, tuple[int, Any]] = field(default_factory=dict)
    """Kind -> (number, result) of its last meeting: an answer that was lost with the connection is given again."""

    @property
    def name(self) -> str:
        return f"worker {self.rank} on {self.host}" if self.host != "?" else f"worker {self.rank}"


class Meeting:
    """Everybody's part in one thing. The last to come does the work for all."""

    def __init__(self, kind: Hashable, what: str, work: Callable[[dict[int, Any]], Any]) -> None:
        self.kind, self.what, self._work = kind, what, work
        self.parts: dict[int, Any] = {}
        self.began = time.monotonic()
        self.closing = self.done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def close(self) -> None:
        try:
            self.result = self._work(self.parts)
        except BaseException as error:
            self.error = error
        self.done = True


class Rounds:
    """Of one server. `changed` guards everything in here."""

    def __init__(self, num_workers: int, limits: Limits, tell: Callable[[str], None]) -> None:
        self.members = [Member(rank) for rank in range(num_workers)]
        self.changed = threading.Condition()
        self.generation = 0
        """Rises whenever the workers that a round waits for become others."""
        self.stops = True
        """A dead worker is the end for the others."""
        self.rollbacks = 0
        """How often all went back to a checkpoint: the most of any worker."""
        self.restarted = False
        """This is not the server's first life: who does not come back soon died meanwhile."""
        self.gone: str | None = None
        """Why no further meeting can be."""
        self._limits, self._tell = limits, tell
        self.forget: Callable[[int], None] = lambda rank: None
        """Called when a worker will not come back."""
        self._open: dict[Hashable, Meeting] = {}
        self._latest = ""
        """What was met for last."""

    # Who is there ---------------------------------------------------------------------------------------------------

    @property
    def live(self) -> list[int]:
        """Those whom rounds wait for."""
        return [member.rank for member in self.members if member.state in ("absent", "here", "lost")]

    def ended(self) -> bool:
        """Whether nobody will come any more."""
        with self.changed:
            states = {member.state for member in self.members}
            if self.gone is not None and "here" not in states:
                return True
            return states <= {"left", "dead"}

    def joins(self, rank: int, host: str, session: bytes, rollbacks: int = 0) -> Member:
        with self.changed:
            member = self.members[rank]
            if rollbacks > self.rollbacks:
                if all(other.state == "absent" for other in self.members):
                    self.restarted = True
                self.rollbacks = rollbacks
                self._end_meetings(lambda meeting: FellBehind(f"left {meeting.what}"))
            if member.state == "here" and member.session != session:
                raise GaveUp(f"worker {rank} is already here, from {member.host}")
            if member.state in ("dead", "left"):
                self.generation += 1
            if member.session != session:
                member.answered.clear()
            member.state, member.host, member.session, member.since = "here", host, session, time.monotonic()
            member.rollbacks = rollbacks
            self.changed.notify_all()
            return member

    def leaves(self, member: Member) -> None:
        with self.changed:
            member.state, member.since = "left", time.monotonic()
            self.generation += 1
            self._look()
        self.forget(member.rank)

    def loses(self, member: Member) -> None:
        """Its connection broke."""
        with self.changed:
            if member.state == "here":
                member.state, member.since = "lost", time.monotonic()
                for meeting in self._open.values():
                    if not meeting.closing:
                        meeting.parts.pop(member.rank, None)

    def were_gone(self, ranks: list[int]) -> None:
        """Workers that died in an earlier life of this server."""
        with self.changed:
            found = [self.members[rank] for rank in ranks if self.members[rank].state == "absent"]
            for member in found:
                member.state, member.since = "dead", time.monotonic()
            self._look()
        for member in found:
            self.forget(member.rank)

    def anew(self, kind: Hashable) -> None:
        """Numbers of this kind begin again."""
        with self.changed:
            for member in self.members:
                member.answered.pop(kind, None)

    def num_dead(self) -> int:
        with self.changed:
            return sum(member.state in ("lost", "dead") for member in self.members)

    # What they do ---------------------------------------------------------------------------------------------------

    def come(
        self, kind: Hashable, member: Member, number: int, part: Any, what: str, work: Callable[[dict[int, Any]], Any]
    ) -> Meeting:
        """Brings a worker's part; does not wait for the others, but for an earlier meeting of this kind to end."""
        with self.changed:
            while (meeting := self._open.get(kind)) is not None and (member.rank in meeting.parts or meeting.closing):
                self._sleep()
            self._check(member)
            if meeting is None:
                meeting = self._open[kind] = Meeting(kind, what, work)
                self._latest = what
            meeting.parts[member.rank] = part
            self._look()
            return meeting

    def wait(self, meeting: Meeting) -> Any:
        with self.changed:
            while not meeting.done:
                self._sleep()
        if meeting.error is not None:
            raise meeting.error
        return meeting.result

    def together(
        self, kind: Hashable, member: Member, number: int, part: Any, what: str, work: Callable[[dict[int, Any]], Any]
    ) -> Any:
        """come and wait; the answer to a number that had one already."""
        known = member.answered.get(kind)
        if known is not None and known[0] == number:
            return known[1]
        result = self.wait(self.come(kind, member, number, part, what, work))
        member.answered[kind] = (number, result)
        return result

    def tick(self) -> None:
        """To be called several times a second: buries the dead, ends waits that are over their limit."""
        with self.changed:
            now = time.monotonic()
            grace_s = LAST_GRACE_S if self.stops else GRACE_S
            waits_s = {"lost": grace_s} | ({"absent": self._limits.return_s} if self.restarted else {})
            buried = [m for m in self.members if now - m.since > waits_s.get(m.state, math.inf)]
            for member in buried:
                self._bury(member)
            for meeting in list(self._open.values()):
                if not meeting.closing:
                    self._judge(meeting, now)
            self._look()
        for member in buried:
            self.forget(member.rank)

    def fail(self, text: str) -> None:
        """Ends all meetings, now and later."""
        with self.changed:
            self._fail(text)

    def _sleep(self) -> None:
        self.changed.wait()

    def _check(self, member: Member) -> None:
        if self.gone is not None:
            raise GaveUp(self.gone)
        if member.rollbacks < self.rollbacks:
            raise FellBehind

    def _bury(self, member: Member) -> None:
        member.state = "dead"
        self.generation += 1
        steps = [meeting.what for meeting in self._open.values()]
        where = f" at {steps[0]}" if steps else f" after {self._latest}" if self._latest else ""
        self._tell(f"{member.name} is gone{where}")
        if self.stops:
            self._fail(f"{member.name} is gone{where}")

    def _judge(self, meeting: Meeting, now: float) -> None:
        missing = [self.members[rank] for rank in self.live if rank not in meeting.parts]
        waiting = ", ".join(self.members[rank].name for rank in sorted(meeting.parts)) or "the server"
        for member in missing:
            limit = self._limits.start_s if member.state == "absent" else self._limits.step_s
            if now - meeting.began > limit:
                why = (
                    "has never come"
                    if member.state == "absent"
                    else f"is connected, but has not reached {meeting.what}"
                )
                text = f"{waiting} wait for {member.name}, which {why}, for {limit:g} s"
                self._tell(text)
                self._fail(text)
                return

    def _fail(self, text: str) -> None:
        self.gone = self.gone or text
        self._end_meetings(lambda meeting: GaveUp(text))

    def _end_meetings(self, why: Callable[[Meeting], Exception]) -> None:
        for kind, meeting in list(self._open.items()):
            if not meeting.closing:
                meeting.error, meeting.done = why(meeting), True
                del self._open[kind]
        self.changed.notify_all()

    def _look(self) -> None:
        """Ends every meeting that nobody is missing from. Called with `changed` held, and lets go of it meanwhile."""
        while True:
            live = set(self.live)
            ready = [m for m in self._open.values() if not m.closing and m.parts and live <= m.parts.keys()]
            if not ready:
                break
            meeting = ready[0]
            meeting.closing = True
            live |= {member.rank for member in self.members if member.state == "left"}  # their last push counts
            meeting.parts = {rank: meeting.parts[rank] for rank in sorted(meeting.parts) if rank in live}
            self.changed.release()
            try:
                meeting.close()
            finally:
                self.changed.acquire()
            del self._open[meeting.kind]
            self.changed.notify_all()
        self.changed.notify_all()
