"""Lag: how late and how slow this machine is, so that a limit in seconds can be held to on a busy one, too."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

_NAP_S = 0.01


class Lag:
    """Within it a thread does nothing but wake up. Several processes must be woken before a failure is answered."""

    TIMES, MOST = 5, 10.0

    def __init__(self) -> None:
        self.begin()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def begin(self) -> float:
        """Forgets what was. Returns time.monotonic()."""
        self.worst_s, self._before = 0.0, _processors()
        return time.monotonic()

    def allows(self, limit_s: float) -> float:
        """The limit in seconds of a machine that its host leaves alone, and what waking up adds to it."""
        got, stolen = (now - before for now, before in zip(_processors(), self._before, strict=True))
        return limit_s * min(1 + stolen / max(got, 1), self.MOST) + self.TIMES * self.worst_s

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


def _processors() -> tuple[int, int]:
    """Time so far that programs computed, and that the host of a virtual machine took from those that would have."""
    path = Path("/proc/stat")
    user, nice, system, _, _, _, _, stolen = map(int, path.read_text().split()[1:9]) if path.exists() else [0] * 8
    return user + nice + system, stolen
