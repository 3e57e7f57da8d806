"""Console: where a person, or a file in their place, reads along."""

from __future__ import annotations

import os
import queue
import threading
from typing import TextIO

_MOST = 10_000
"""Lines that wait for a console which takes none."""
_LAST_S = 2.0


class Console:
    """Lines for people. A console that went away (`| head`) is no reason to end a training: it falls silent.

    Nor is one that takes nothing for a while (`| less`, Ctrl-S): a thread of its own waits for it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(_MOST)
        self._writer: threading.Thread | None = None

    @property
    def is_terminal(self) -> bool:
        return self._stream.isatty()

    def duplicate(self) -> int:
        """A descriptor of its own for whoever is to draw there; the caller closes it."""
        return os.dup(self._stream.fileno())

    def show(self, line: str) -> None:
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="console", daemon=True)
            self._writer.start()
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            pass  # the logs have it

    def close(self) -> None:
        """Gives the last lines a moment."""
        if self._writer is not None:
            try:
                self._lines.put(None, timeout=_LAST_S)
            except queue.Full:
                return
            self._writer.join(_LAST_S)

    def _write(self) -> None:
        gone = False
        while (line := self._lines.get()) is not None:
            try:
                if not gone:
                    self._stream.write(line + "\n")
                    self._stream.flush()
            except (OSError, ValueError):
                gone = True
