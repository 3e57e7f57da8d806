"""Console: where a person, or a file in their place, reads along."""

from __future__ import annotations

import os
from typing import TextIO


class Console:
    """Lines for people. A console that went away (`| head`) is no reason to end a training: it falls silent."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream

    @property
    def is_terminal(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def duplicate(self) -> int:
        """A descriptor of its own for whoever is to draw there; the caller closes it."""
        assert self._stream is not None
        return os.dup(self._stream.fileno())

    def show(self, line: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None
