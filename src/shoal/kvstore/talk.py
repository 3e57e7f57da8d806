"""Talk: what workers and servers say to each other beside tensors, as records of fixed size."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from shoal.kvstore.wire import WireError

_HELLO = struct.Struct("<IIIII8s")
_WELCOME = struct.Struct("<8sI16s")
_SHARE = struct.Struct("<IIQ")
_COMMIT = struct.Struct("<ddBBHIQQ")
_RESULT = struct.Struct("<BBHIQQd")
_APPLY = struct.Struct("<Bdd")
_LARGEST = (2 - 2**-23) * 2.0**127
"""Of float32's numbers."""


class Hello(NamedTuple):
    """A worker's first word."""

    rank: int
    num_ranks: int
    server: int
    num_servers: int
    rollbacks: int
    """That this worker has been through."""
    session: bytes
    """8 random bytes of this life of the worker."""

    SIZE = _HELLO.size

    def pack(self) -> bytes:
        return _HELLO.pack(*self)

    @staticmethod
    def unpack(data: bytes) -> Hello:
        return Hello(*_HELLO.unpack(data))


class Welcome(NamedTuple):
    """The server's answer."""

    boot: bytes
    """8 random bytes of this life of the server."""
    pid: int
    host: bytes

    SIZE = _WELCOME.size

    def pack(self) -> bytes:
        return _WELCOME.pack(*self)

    @staticmethod
    def unpack(data: bytes) -> Welcome:
        return Welcome(*_WELCOME.unpack(data))


class Share(NamedTuple):
    """Where a process keeps a memfd; nbytes of numbers."""

    pid: int
    fd: int
    nbytes: int

    SIZE = _SHARE.size

    def pack(self) -> bytes:
        return _SHARE.pack(*self)

    @staticmethod
    def unpack(data: bytes) -> Share:
        return Share(*_SHARE.unpack(data))


class Commit(NamedTuple):
    lr: float | None
    clip_norm: float | None
    finite: bool
    ask: int
    generation: int
    """Of the workers that this step was cut for."""
    pulled: int
    """The version that the gradient was computed from."""
    position: int | None = None
    """What was worked on, of those that server 0 hands out."""

    SIZE = _COMMIT.size

    def pack(self) -> bytes:
        position = 0 if self.position is None else self.position + 1
        return _COMMIT.pack(
            _number(self.lr), _number(self.clip_norm), self.finite, self.ask, 0, self.generation, self.pulled, position
        )

    @staticmethod
    def unpack(data: bytes) -> Commit:
        lr, clip_norm, finite, ask, _, generation, pulled, position = _COMMIT.unpack(data)
        place = position - 1 if position else None
        return Commit(
            _optional(lr, "learning rate"),
            _optional(clip_norm, "largest norm"),
            bool(finite),
            ask,
            generation,
            pulled,
            place,
        )


APPLIED, DROPPED, REDO, PREPARED = range(4)


class Result(NamedTuple):
    """What became of a commit."""

    status: int
    asked: int
    generation: int
    version: int
    staleness: int
    norm: float
    live: tuple[int, ...]
    squares: tuple[float, ...]
    """PREPARED: this server's part of the squared norm."""

    @staticmethod
    def size(num_workers: int, num_squares: int) -> int:
        return _RESULT.size + -(-num_workers // 8) + 8 * num_squares

    def pack(self, num_workers: int, num_squares: int) -> bytes:
        bits = sum(1 << rank for rank in self.live).to_bytes(-(-num_workers // 8), "little")
        squares = self.squares or (0.0,) * num_squares
        return _RESULT.pack(*self[:2], 0, *self[2:6]) + bits + struct.pack(f"<{num_squares}d", *squares)

    @staticmethod
    def unpack(data: bytes, num_workers: int, num_squares: int) -> Result:
        width = -(-num_workers // 8)
        status, asked, _, generation, version, staleness, norm = _RESULT.unpack(data[: _RESULT.size])
        bits = int.from_bytes(data[_RESULT.size : _RESULT.size + width], "little")
        live = tuple(rank for rank in range(num_workers) if bits >> rank & 1)
        squares = struct.unpack(f"<{num_squares}d", data[_RESULT.size + width :])
        return Result(status, asked, generation, version, staleness, norm, live, squares)


class Apply(NamedTuple):
    """The second half of a commit, when there are several servers."""

    status: int
    """APPLIED, DROPPED or REDO."""
    lr: float | None
    scale: float

    SIZE = _APPLY.size

    def pack(self) -> bytes:
        return _APPLY.pack(self.status, _number(self.lr), self.scale)

    @staticmethod
    def unpack(data: bytes) -> Apply:
        status, lr, scale = _APPLY.unpack(data)
        if status not in (APPLIED, DROPPED, REDO):
            raise WireError(f"APPLY with status {status}")
        return Apply(status, _optional(lr, "learning rate"), _checked(scale, "scale") if status == APPLIED else scale)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _optional(value: float, what: str) -> float | None:
    return None if math.isnan(value) else _checked(value, what)


def _checked(value: float, what: str) -> float:
    """WireError where float32 cannot hold it: times a gradient of 0 it would be no number."""
    if not 0 <= value <= _LARGEST:
        raise WireError(f"a {what} of {value:g}; expected 0 to {_LARGEST:g}")
    return value
