"""Output: what one process prints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from shoal.base.errors import ShoalError

_LONGEST = 1 << 16  # bytes of a line before it is shown in pieces: a process may never end its line


class Output:
    """Takes bytes as they come: all go to the log, whole lines to `show`, the last lines are kept."""

    def __init__(
        self,
        log: Path,
        show: Callable[[str], None],
        *,
        away: Callable[[bytes], None] | None = None,
        keep: int = 15,
    ) -> None:
        """`away`: takes the bytes in the log's place, where the log lies on another host."""
        self._show = show
        self._path = log
        self._away = away
        self._log: FileIO | None = None
        self._unfinished = b""
        self.tail: deque[str] = deque(maxlen=keep)

    def open(self) -> None:
        """Opens the log behind what it already holds (a resumed run goes on in the same file)."""
        if self._away:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._log = FileIO(self._path, "ab")
        except OSError as error:
            raise ShoalError(f"log {self._path}: cannot be opened ({error.strerror})") from None

    def add(self, data: bytes) -> None:
        if self._away:
            self._away(data)
        self._write(data)
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._unfinished) > _LONGEST:
            self._flush()

    def note(self, line: str) -> None:
        """A line of our own in the log, and nowhere else."""
        data = f"\n{line}\n".encode()
        if self._away:
            self._away(data)
        self._write(data)

    def finish(self) -> None:
        """The process has ended: its last line may lack an end."""
        self._flush()

    def close(self) -> None:
        """Shows a last line that has no end, and closes the log."""
        self._flush()
        if self._log:
            self._log.close()

    def _flush(self) -> None:
        if self._unfinished:
            self._line(self._unfinished)
            self._unfinished = b""

    def _line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self.tail.append(text)
        self._show(text)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and self._log:
                rest = rest[self._log.write(rest) :]
        except OSError:
            pass  # a full disk must not end the training; the console and the tail go on
