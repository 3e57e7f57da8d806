"""Signals: those sent to this process, as something a selector can wait for."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any


class Signals:
    """From `catch` until `restore`, the signals that mean "stop" are kept for `read` and do nothing else.

    Caught signals are back at their default in programs started meanwhile, also where this process was itself started
    with SIGINT ignored (a background job of a script). An ignored SIGHUP (nohup) stays ignored, here and there.
    """

    STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

    def __init__(self) -> None:
        self.fd, self._in = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._in, False)
        self._previous: dict[signal.Signals, Any] = {}

    def catch(self) -> None:
        """Does nothing outside the main thread, where Python allows no handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in self.STOP:
            if signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN:
                continue
            self._previous[signum] = signal.signal(signum, lambda number, frame: self._note(number))
        # Ignored, it would make the system forget how children ended.
        self._previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def restore(self) -> None:
        while self._previous:
            signum, handler = self._previous.popitem()
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    def read(self) -> list[int]:
        """The signals since the last call, in order."""
        try:
            return [number for number in os.read(self.fd, 4096) if number]
        except BlockingIOError:
            return []

    def wake(self) -> None:
        """Makes `fd` readable without a signal."""
        self._note(0)

    def close(self) -> None:
        self.restore()
        os.close(self.fd)
        os.close(self._in)

    def _note(self, number: int) -> None:
        try:
            os.write(self._in, bytes([number]))
        except OSError:
            pass  # thousands of unread signals say no more than the first ones
