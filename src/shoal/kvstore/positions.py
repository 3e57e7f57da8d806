"""Positions: work handed out one piece at a time, so that every piece counts once although workers differ in speed."""

from __future__ import annotations

import threading

import msgspec


class Handed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was handed out, for a snapshot."""

    next: int
    again: list[int]
    ahead: list[int]
    taken: dict[int, list[int]]


class Positions:
    """0, 1, 2 …; what a worker took and did not finish is handed out again, first.

    A server that goes on from a snapshot has handed out more than it remembers: what a worker says it finished counts,
    unless somebody else has it by now.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self._again: set[int] = set()
        self._ahead: set[int] = set()
        """Finished, though not yet handed out since the snapshot."""
        self._taken: dict[int, list[int]] = {}

    def take(self, rank: int, limit: int, held: int = 0) -> int | None:
        """The next position below `limit`. held: how many the worker has; what it had beside them got lost."""
        with self._lock:
            own = self._taken.setdefault(rank, [])
            while len(own) > held:
                self._again.add(own.pop(0))
            while self._next in self._ahead:
                self._ahead.remove(self._next)
                self._next += 1
            if self._again and min(self._again) < limit:
                position = min(self._again)
                self._again.remove(position)
            elif self._next < limit:
                position = self._next
                self._next += 1
            else:
                return None
            own.append(position)
            return position

    def finish(self, rank: int, position: int) -> bool:
        """Whether the worker's work on it counts."""
        with self._lock:
            if position in self._taken.get(rank, ()):
                self._taken[rank].remove(position)
            elif position in self._again:
                self._again.remove(position)
            elif position >= self._next and position not in self._ahead:
                self._ahead.add(position)
            else:
                return False
            return True

    def give_back(self, rank: int) -> None:
        """The worker will not finish what it took."""
        with self._lock:
            self._again.update(self._taken.pop(rank, []))

    def seek(self, position: int) -> None:
        with self._lock:
            self._next, self._again, self._ahead, self._taken = position, set(), set(), {}

    def state(self) -> Handed:
        with self._lock:
            taken = {rank: list(held) for rank, held in self._taken.items()}
            return Handed(next=self._next, again=sorted(self._again), ahead=sorted(self._ahead), taken=taken)

    def load(self, state: Handed) -> None:
        with self._lock:
            self._next, self._again, self._ahead = state.next, set(state.again), set(state.ahead)
            self._taken = {rank: list(held) for rank, held in state.taken.items()}
