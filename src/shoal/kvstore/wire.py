"""Wire: messages between workers and servers, over a connection whose ends have proved themselves (launch.handshake).

A message is a fixed header and a payload. No buffer is ever made from a number that came with it: a payload goes
into memory that is there already (its size is compared first), or is read in pieces and kept as far as it came, up to a
bound that the receiver knows.
"""

from __future__ import annotations

import enum
import socket
import ssl
import struct
from typing import NamedTuple

import torch

MAGIC = b"SHL1"
_HEADER = struct.Struct("<4sBBHIQQQQ")
SIZE = _HEADER.size
SMALL = 1 << 20
"""Most bytes of a message that is not part of a tensor whose size both ends know."""
_PIECE = 1 << 16
_LOOP_BUFFER = 1 << 18
"""Bytes under way between two processes of one host: few enough to stay in a core's cache from copy to copy."""


class Op(enum.IntEnum):
    OK = 0
    ERROR = 1
    HELLO = 2
    INIT = 3
    DATA = 4
    SHARE = 5
    PUSH = 6
    COMMIT = 7
    APPLY = 8
    PULL = 9
    SIDE = 10
    BARRIER = 11
    STATE = 12
    OPTIMIZER = 13
    DEAD = 14
    TAKE = 15
    SEEK = 16
    LOAD = 17
    BYE = 18


class Flag(enum.IntFlag):
    NONE = 0
    SHARED = 1
    """The payload lies in shared memory."""
    NODE = 2
    """PUSH: a node of the tree of additions; `step` holds it."""
    QUIET = 4
    """No answer is wanted."""
    WANTED = 8
    """INIT's first answer: send the values."""
    RESET = 16
    """INIT: also where the table is known already. ERROR: all go back to their checkpoint; count: for the how manyth
    time."""
    PREPARE = 32
    """COMMIT: do not apply yet, APPLY follows."""
    NEWS = 64
    """OPTIMIZER: only the rate changes."""


class WireError(Exception):
    """The other end says what is not allowed; the connection is of no more use."""


class Header(NamedTuple):
    op: Op
    flags: Flag = Flag.NONE
    codec: int = 0
    table: int = 0
    step: int = 0
    start: int = 0
    count: int = 0
    """Numbers in the payload, or a version."""
    nbytes: int = 0
    """Of the payload on the wire."""

    def pack(self) -> bytes:
        return _HEADER.pack(MAGIC, *self)


_OPS = {int(op): op for op in Op}
_FLAGS = [Flag(number) for number in range(sum(Flag) + 1)]
"""Made beforehand: an enumeration takes longer to look one up than all else that is done with a header."""


def parse(data: bytes | bytearray | memoryview) -> Header:
    """WireError says what is wrong with a header."""
    if len(data) != SIZE:
        raise WireError(f"a header of {len(data)} bytes")
    magic, op, flags, codec, table, step, start, count, nbytes = _HEADER.unpack(data)
    if magic != MAGIC:
        raise WireError(f"no message of this protocol (begins with {magic!r})")
    if op not in _OPS:
        raise WireError(f"no operation {op}")
    if flags >= len(_FLAGS):
        raise WireError(f"no flags {flags:#x}")
    return Header(_OPS[op], _FLAGS[flags], codec, table, step, start, count, nbytes)


def raw(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor, not copied."""
    return tensor.view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


def _is_loop(connection: socket.socket) -> bool:
    try:
        return connection.getpeername()[0] == connection.getsockname()[0]
    except OSError:
        return False


class Wire:
    """One connection. Not for several threads at once, but for one that sends while another receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._plain = not isinstance(connection, ssl.SSLSocket)
        self._head = bytearray(SIZE)
        self._held = b""
        self.bytes_sent = 0
        connection.settimeout(None)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _is_loop(connection):
                for side in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    connection.setsockopt(socket.SOL_SOCKET, side, _LOOP_BUFFER)

    def limit(self, silence_s: float | None, network_s: float | None = None) -> None:
        """silence_s: how long a receive may wait, in kernel time (WireTimeout); network_s: how long sent bytes may stay
        unacknowledged, and an idle network unproved."""
        if silence_s is not None:
            # Not settimeout: that would make the socket non-blocking, and every large receive a hundred small ones.
            timeval = struct.pack("ll", int(silence_s), int(silence_s % 1 * 1e6))
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        if network_s is not None and self._connection.family in (socket.AF_INET, socket.AF_INET6):
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (
                ("TCP_USER_TIMEOUT", int(network_s * 1000)),
                ("TCP_KEEPIDLE", max(1, int(network_s / 3))),
                ("TCP_KEEPINTVL", max(1, int(network_s / 6))),
                ("TCP_KEEPCNT", 4),
            ):
                if hasattr(socket, name):
                    self._connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def hold(self, header: Header) -> None:
        """To be sent with the next message: the other end need not wake for it."""
        self._held += header.pack()

    def send(self, header: Header, payload: memoryview | bytes = b"") -> None:
        head = self._held + header._replace(nbytes=len(payload)).pack()
        self._held = b""
        self.bytes_sent += len(head) + len(payload)
        if not len(payload):
            self._connection.sendall(head)
        elif self._plain:
            sent = self._connection.sendmsg([head, payload])
            if sent < len(head):
                self._connection.sendall(head[sent:])
                sent = len(head)
            if sent < len(head) + len(payload):
                self._connection.sendall(memoryview(payload)[sent - len(head) :])
        else:
            self._connection.sendall(head)
            self._connection.sendall(payload)

    def receive(self) -> Header | None:
        """The next header; None when the other end closed the connection between two messages."""
        got = self._receive_into(memoryview(self._head), may_end=True)
        return parse(self._head) if got else None

    def receive_into(self, header: Header, payload: memoryview) -> None:
        """A payload whose size is known."""
        if header.nbytes != len(payload):
            raise WireError(f"{header.op.name} announces {header.nbytes} bytes, where there are {len(payload)}")
        if len(payload):
            self._receive_into(payload)

    def receive_small(self, header: Header, most: int = SMALL) -> bytes:
        """A payload of up to `most` bytes."""
        if header.nbytes > most:
            raise WireError(f"{header.op.name} announces {header.nbytes} bytes, at most {most} are allowed")
        data = bytearray()
        while len(data) < header.nbytes:
            piece = self._connection.recv(min(_PIECE, header.nbytes - len(data)))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def _receive_into(self, view: memoryview, *, may_end: bool = False) -> bool:
        got = 0
        while got < len(view):
            if self._plain:
                size = self._connection.recv_into(view[got:], flags=socket.MSG_WAITALL)
            else:
                size = self._connection.recv_into(view[got:])
            if not size:
                if may_end and not got:
                    return False
                raise EOFError
            got += size
        return True

    def shutdown(self) -> None:
        """Wakes whoever waits on this connection."""
        try:
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)  # not TLS's, which is not for other threads
        except OSError:
            pass

    def close(self) -> None:
        self._connection.close()
