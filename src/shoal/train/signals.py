"""Signals that ask a training to stop: the state is saved at the same step on all workers, whoever was asked."""

from __future__ import annotations

import signal
import types
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.base.errors import INTERRUPTED, REQUEUE

ASK_OF_SIGNAL = {
    signal.SIGTERM: 1,
    signal.SIGUSR1: 1,
    signal.SIGHUP: 1,
    signal.SIGINT: 2,
}
EXIT_OF_ASK = {1: REQUEUE, 2: INTERRUPTED}


class StopSignals:
    """Notes the strongest ask so far instead of ending the process.

    SIGTERM, SIGUSR1 and SIGHUP are noted from `with StopSignals()` on, long before the first step. Ctrl-C is noted
    only inside `training()`: before it there is nothing to save, and a second one interrupts at once.
    """

    def __init__(self) -> None:
        self.ask = 0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                self._before[number] = signal.signal(number, self._note)
        return self

    @contextmanager
    def training(self) -> Iterator[StopSignals]:
        before = signal.signal(signal.SIGINT, self._note)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)

    def _note(self, number: int, frame: types.FrameType | None) -> None:
        ask = ASK_OF_SIGNAL[signal.Signals(number)]
        if ask == 2 and self.ask == 2:
            raise KeyboardInterrupt
        self.ask = max(self.ask, ask)

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
