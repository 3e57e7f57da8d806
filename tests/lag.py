"""Lag: how late this machine is, so that a limit in seconds can be held to on a busy one, too."""

from __future__ import annotations

import threading
import time
from types import TracebackType

_NAP_S = 0.01


class Lag:
    """Within it a thread does nothing but wake up. Several processes must be woken before a failure is answered."""

    TIMES = 5

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def allows(self, limit_s: float) -> float:
        """The limit, and what the machine adds to it."""
        return limit_s + self.TIMES * self.worst_s

    def __enter__(self) -> Lag:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            time.sleep(_NAP_S)
            self.worst_s = max(self.worst_s, time.monotonic() - began - _NAP_S)
