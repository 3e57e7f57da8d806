"""Seats: where agents that come by themselves are waited for, whoever started them.

A connection begins with the handshake of `handshake.py`. Then the agent says in one line which node it is, and waits;
when all have come, the launcher says `ok`, and the connection is the link of that agent.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass

from shoal.base.errors import ShoalError, UsageError
from shoal.launch.handshake import Door

PURPOSE = "node"
_LONGEST = 4096
_SAY_S = 5.0
"""How long a node may take to say which it is."""


@dataclass(frozen=True)
class Seat:
    """What a node says of itself; all nodes must have been told the same job."""

    node: int
    num_nodes: int
    command: str
    """What all must agree on."""


class Seats:
    """A connection for each node that has come. Takes `door` over; whoever leaves it by an error leaves nobody."""

    def __init__(
        self,
        door: Door,
        expected: Iterable[int],
        refuse: Callable[[Seat, Collection[int]], str | None],
        show: Callable[[str], None],
    ) -> None:
        """`refuse`: why a node cannot be one of this job, given those that are seated; None where it can."""
        self._door, self._refuse, self._show = door, refuse, show
        self._expected = tuple(expected)
        self._seated: dict[int, socket.socket] = {}

    @property
    def missing(self) -> list[int]:
        return [node for node in self._expected if node not in self._seated]

    def turn(self, wait_s: float) -> None:
        """Waits for somebody to come, at most `wait_s` seconds."""
        self._unseat()
        if came := self._door.accept(wait_s):
            connection, address = came
            node = self._seat(connection)
            if node is not None:
                self._seated[node] = connection
                self._show(f"{nodes([node])} has come from {address[0]}")

    def begin(self) -> dict[int, socket.socket]:
        """Tells all that all have come; the connections, the caller's from now on."""
        for connection in self._seated.values():
            _say(connection, {"ok": True})
            connection.settimeout(None)
        seated, self._seated = self._seated, {}
        return seated

    def __enter__(self) -> Seats:
        return self

    def __exit__(self, *exc: object) -> None:
        for connection in self._seated.values():
            connection.close()
        self._door.close()

    def _seat(self, connection: socket.socket) -> int | None:
        """Which node it is; None where it cannot be one of this job, which it is told."""
        said = _hear(connection, _SAY_S)
        try:
            seat = Seat(int(said["node"]), int(said["num_nodes"]), str(said["command"])) if said else None
        except (KeyError, TypeError, ValueError):
            seat = None
        if seat is None:
            connection.close()
            return None
        refused = self._refuse(seat, self._seated)
        if refused is None:
            keep_alive(connection)
            return seat.node
        self._show(f"refused: {refused}")
        _say(connection, {"refused": refused})
        connection.close()
        return None

    def _unseat(self) -> None:
        """Frees the seats of nodes that went away again."""
        if not self._seated:
            return
        with selectors.DefaultSelector() as selector:
            for node, connection in self._seated.items():
                selector.register(connection, selectors.EVENT_READ, node)
            for key, _ in selector.select(0):  # it has nothing to say now: this is its end
                self._seated.pop(key.data).close()
                self._show(f"{nodes([key.data])} went away again")


def take(connection: socket.socket, seat: Seat, whose: str) -> None:
    """The node's side: says which it is, and returns when all have come. `whose`: who listens there, for messages."""
    keep_alive(connection)
    _say(connection, asdict(seat))
    answer = _hear(connection, None)
    if answer is None:
        raise ShoalError(f"{whose} went away before the start; its own output says why")
    if "refused" in answer:
        raise UsageError(f"{whose}: {answer['refused']}")


def nodes(numbers: Sequence[int]) -> str:
    return f"node{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _say(connection: socket.socket, message: object) -> None:
    try:
        connection.settimeout(_SAY_S)
        connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        pass  # it is gone, which shows where it is read from


def _hear(connection: socket.socket, limit_s: float | None) -> dict | None:
    """One line of limited length, and not a byte more: what follows is the link's. None where there is none."""
    limit = None if limit_s is None else time.monotonic() + limit_s
    line = b""
    try:
        while not line.endswith(b"\n") and len(line) < _LONGEST:
            connection.settimeout(None if limit is None else max(0.001, limit - time.monotonic()))
            byte = connection.recv(1)
            if not byte:
                return None
            line += byte
        said = json.loads(line)
        return said if isinstance(said, dict) else None
    except (OSError, ValueError):
        return None


def keep_alive(connection: socket.socket) -> None:
    """So that the end of a host that falls silent is noticed while nobody has anything to say."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
