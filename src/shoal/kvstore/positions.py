"""Positions: work handed out one piece at a time, so that every piece counts once although workers differ in speed."""

from __future__ import annotations

import heapq
import threading
from typing import Any


class Positions:
    """0, 1, 2 …; what a worker took and did not finish is handed out again, first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self._again: list[int] = []
        self._taken: dict[int, list[int]] = {}

    def take(self, rank: int, limit: int) -> int | None:
        """The next position below `limit`."""
        with self._lock:
            if self._again and self._again[0] < limit:
                position = heapq.heappop(self._again)
            elif self._next < limit:
                position = self._next
                self._next += 1
            else:
                return None
            self._taken.setdefault(rank, []).append(position)
            return position

    def finish(self, rank: int) -> None:
        """The first that the worker took is done."""
        with self._lock:
            if self._taken.get(rank):
                self._taken[rank].pop(0)

    def give_back(self, rank: int) -> None:
        """The worker will not finish what it took."""
        with self._lock:
            for position in self._taken.pop(rank, []):
                heapq.heappush(self._again, position)

    def seek(self, position: int) -> None:
        with self._lock:
            self._next, self._again, self._taken = position, [], {}

    def state(self) -> dict[str, Any]:
        with self._lock:
            taken = {str(rank): list(held) for rank, held in self._taken.items()}
            return {"next": self._next, "again": sorted(self._again), "taken": taken}

    def load(self, state: dict[str, Any]) -> None:
        with self._lock:
            self._next, self._again = state["next"], list(state["again"])
            self._taken = {int(rank): list(held) for rank, held in state["taken"].items()}
