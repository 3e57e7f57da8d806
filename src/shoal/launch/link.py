"""Link: JSON lines between the launcher and the agent of one host, both ways, with a beat that proves life."""

from __future__ import annotations

import json
import os
import time
from typing import Any

BEAT_S = 1.0
"""How often each side says that it lives."""
CLOSE_S = 1.0
"""How long the last words may take."""
_LONGEST = 1 << 24
"""Bytes of a message; more is no message of ours."""
_PIECE = 1 << 16
FULL = 1 << 20
"""Bytes that wait to be sent, from which on nothing more should be read that has to be sent too."""

Message = dict[str, Any]


class LinkError(Exception):
    """What came over the link is none of Shoal's words."""


class Link:
    """Neither reading nor writing ever blocks: who waits for the other side cannot look after its processes."""

    def __init__(self, reads: int, writes: int, *, noisy: bool = False) -> None:
        """Descriptors to read from and to write to (of a socket, the same); the link's own from now on.

        noisy: lines before the first message may be anything, such as what a login shell prints.
        """
        self._is_noisy = noisy
        self.reads, self.writes = reads, writes
        os.set_blocking(reads, False)
        os.set_blocking(writes, False)
        self.heard_at = time.monotonic()
        self.is_over = False
        """Whether the other side has closed it; nothing more will come."""
        self._received = b""
        self._unsent = bytearray()
        self._beat_at = 0.0
        self._is_broken = False

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent; none once the other side is gone."""
        return len(self._unsent)

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self.heard_at

    def send(self, message: Message) -> None:
        """Never raises; to nobody where the other side is gone."""
        if not self._is_broken:
            self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
            self.flush()

    def beat(self) -> None:
        """To be called often; sends at most one beat per BEAT_S."""
        now = time.monotonic()
        if now - self._beat_at >= BEAT_S:
            self._beat_at = now
            if not self._unsent:  # a full pipe is proof enough that something is on its way
                self.send({})

    def flush(self) -> None:
        """Sends what it can."""
        try:
            while self._unsent:
                del self._unsent[: os.write(self.writes, self._unsent[:_PIECE])]
        except BlockingIOError:
            pass
        except OSError:
            self._is_broken = True
            self._unsent.clear()

    def receive(self) -> list[Message]:
        """All messages that have come, beats left out. LinkError at what is no message."""
        while True:
            try:
                data = os.read(self.reads, _PIECE)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.is_over = True
                break
            self.heard_at = time.monotonic()
            self._received += data
            if len(data) < _PIECE:
                break
        *lines, self._received = self._received.split(b"\n")
        if len(self._received) > _LONGEST:
            raise LinkError("a line without end")
        return [message for line in lines if (message := self._parse(line))]

    def _parse(self, line: bytes) -> Message:
        try:
            message = parse(line)
        except LinkError:
            if self._is_noisy:
                return {}
            raise
        self._is_noisy = False
        return message

    def close(self) -> None:
        """Gives the last words a moment, then closes."""
        limit = time.monotonic() + CLOSE_S
        while self._unsent and time.monotonic() < limit:
            self.flush()
            if self._unsent:
                time.sleep(0.01)
        self.cut()

    def cut(self) -> None:
        """Closes at once."""
        self._is_broken = self.is_over = True
        self._unsent.clear()
        for descriptor in {self.reads, self.writes} - {-1}:
            os.close(descriptor)
        self.reads = self.writes = -1


def parse(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise LinkError(line[:200].decode(errors="replace"))
    return message
