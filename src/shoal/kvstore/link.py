"""Link: a worker's connection to one server, on which one thing happens after another."""

from __future__ import annotations

import os
import secrets
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import safetensors.torch
import torch

from shoal.base.errors import ShoalError
from shoal.kvstore import shm
from shoal.kvstore.layout import Limits
from shoal.kvstore.shm import Shared
from shoal.kvstore.table import Plan
from shoal.kvstore.talk import Apply, Commit, Hello, Result, Share, Welcome
from shoal.kvstore.tls import Cover
from shoal.kvstore.turns import Turns
from shoal.kvstore.wire import SMALL, Flag, Header, Op, Wire, WireError, raw
from shoal.launch.handshake import HandshakeError, connect

T = TypeVar("T")
_MARGIN_S = 30.0
"""Beyond the server's own limits, so that its answer, which knows more, comes first."""
_RETRY_S = 0.1


class ServerError(ShoalError):
    """A server refused or gave up; the text says who waits for whom."""


class RolledBack(ServerError):
    """sync: a server came back from an older state than its workers have. All workers get it in the same round: they
    load the same checkpoint with `load` and go on from there."""


@dataclass(frozen=True)
class Pushed:
    """What was pushed since the last commit: sent again when the server comes back."""

    header: Header
    payload: torch.Tensor | None


class Link(Turns):
    """To server `number` of `num_servers` at `address` (host:port)."""

    def __init__(
        self,
        address: str,
        number: int,
        num_servers: int,
        rank: int,
        num_ranks: int,
        session: bytes,
        secret: bytes,
        limits: Limits,
        tell: Callable[[str], None],
        cover: Cover,
    ) -> None:
        super().__init__(f"server {number}")
        self._cover = cover
        self.number, self.address = number, address
        self.asynchronous = False
        self.version = 0
        """Of table 0, which this worker has, or in async mode had when it pulled last."""
        self.generation = 0
        """Of the workers that this server's rounds wait for."""
        self.here = False
        """The server seems to be on this host."""
        self.shared: dict[int, torch.Tensor] = {}
        """Table -> the server's values, when they can be read where they lie."""
        self._hello = Hello(rank, num_ranks, number, num_servers, 0, session)
        self.rollbacks = 0
        """That this worker has been through, or that the server told of."""
        self.gone: list[int] = []
        """Workers that a server which was started again need not wait for."""
        self._secret, self._limits, self._tell = secret, limits, tell
        self._wire: Wire | None = None
        self._sent_before = 0
        self._boot = b""
        self._interrupted = False
        self._pushed: dict[int, list[Pushed]] = {}
        self._shares: dict[int, tuple[int, Shared, int, Plan]] = {}
        self._number = int.from_bytes(secrets.token_bytes(4), "little")

    @property
    def name(self) -> str:
        return f"server {self.number} at {self.address}"

    @property
    def bytes_sent(self) -> int:
        return self._sent_before + (self._wire.bytes_sent if self._wire else 0)

    def close(self) -> None:
        super().close()
        if self._wire is not None:
            self._wire.close()

    def interrupt(self) -> None:
        """From another thread: ends a wait for this server, until `again`."""
        self._interrupted = True
        if self._wire is not None:
            self._wire.shutdown()

    # The rest is done in turn. Connection --------------------------------------------------------------------------

    def connect(self, limit_s: float) -> None:
        """Until the server is there, as long as it may take."""
        until = time.monotonic() + limit_s
        host, _, port = self.address.rpartition(":")
        while True:
            try:
                connection = connect((host, int(port)), self._secret, f"kvstore {self.number}", limit_s=10.0)
                self._greet(Wire(self._cover.follow(connection)))
                return
            except HandshakeError as error:
                reason = str(error)
                # A server that starts has its port before it answers; what answers otherwise is not what we look for.
                fatal = not isinstance(error.__context__, OSError) and "does not answer" not in reason
            except (OSError, EOFError) as error:
                fatal, reason = False, f"{self.address}: {error or 'the connection was closed'}"
            if fatal or time.monotonic() > until:
                late = "" if fatal else f" within {limit_s:g} s"
                raise ServerError(f"worker {self._hello.rank}: no server {self.number}{late}: {reason}")
            time.sleep(_RETRY_S)

    def _greet(self, wire: Wire) -> None:
        wire.limit(10.0, self._limits.silence_s)
        wire.send(Header(Op.HELLO), self._hello._replace(rollbacks=self.rollbacks).pack())
        header = self._answer_on(wire)
        welcome = bytearray(Welcome.SIZE)
        wire.receive_into(header, memoryview(welcome))
        told = Welcome.unpack(bytes(welcome))
        self.here = told.host == shm.host()
        wire.limit(max(self._limits.step_s, self._limits.start_s) + _MARGIN_S)
        self._sent_before, self._wire = self.bytes_sent, wire
        before, self._boot = self._boot, told.boot
        if before and before != told.boot:
            self._restarted(wire, header)

    def _restarted(self, wire: Wire, header: Header) -> None:
        if self.gone:
            wire.send(Header(Op.DEAD), struct.pack(f"<{len(self.gone)}I", *self.gone))
            self._answer_on(wire)
        if not self.asynchronous:
            self.rollbacks += 1
            raise RolledBack(f"{self.name} was restarted and knows nothing of this step; go on from a checkpoint")
        if not header.count:
            raise ServerError(f"{self.name} was restarted without a snapshot")
        lost = self.version - header.start
        told = f"lost {lost} pushes of all workers" if lost > 0 else "lost nothing that this worker has seen"
        self._tell(f"{self.name} is back with version {header.start}; {told}")

    def again(self, rollbacks: int) -> None:
        """A fresh connection, to a server that may have been restarted; rollbacks: with this one."""
        self.rollbacks = rollbacks
        if self._wire is not None:
            self._wire.close()
        self._pushed.clear()
        self._interrupted = False
        self.generation = 0
        try:
            self.connect(self._limits.return_s)
        except RolledBack:  # this server, too
            self.rollbacks = rollbacks

    def _return(self) -> None:
        assert self._wire is not None
        self._wire.close()
        self.connect(self._limits.return_s)
        for share in list(self._shares.values()):
            self.share(*share)
        for pushed in self._pushed.values():
            for piece in pushed:
                self._send(piece)

    def _ask(self, request: Callable[[Wire], T]) -> T:
        """A question and its answer, asked again when the server went away meanwhile."""
        self.check()
        until = time.monotonic() + self._limits.return_s
        while True:
            try:
                if self._wire is None:
                    raise EOFError
                return request(self._wire)
            except BlockingIOError:
                raise ServerError(f"worker {self._hello.rank} waits for {self.name}, which does not answer") from None
            except WireError as error:
                raise ServerError(f"{self.name}: {error}") from None
            except (OSError, EOFError):
                if self._interrupted:
                    raise ServerError(f"{self.name}: left, for another server failed") from None
                if time.monotonic() > until:
                    raise ServerError(f"{self.name} keeps going away") from None
                try:
                    self._return()
                except (OSError, EOFError):
                    continue

    def _answer_on(self, wire: Wire, op: Op = Op.OK) -> Header:
        header = wire.receive()
        if header is None:
            raise EOFError
        if header.op == Op.ERROR:
            text = f"{self.name}: {wire.receive_small(header).decode(errors='replace')}"
            if Flag.RESET not in header.flags:
                raise ServerError(text)
            self.rollbacks = header.count
            raise RolledBack(text)
        if header.op != op:
            raise WireError(f"{header.op.name} where {op.name} is due")
        return header

    def _next(self) -> int:
        self._number += 1
        return self._number

    # Questions ------------------------------------------------------------------------------------------------------

    def make(self, table: int, plan: Plan, values: torch.Tensor, state: dict[str, torch.Tensor] | None) -> int:
        """Makes a table known; `values` of it are sent if this worker's count. state: resets a table that there is."""
        reset, number = state is not None, self._next()
        told = msgspec.json.encode(plan)

        def request(wire: Wire) -> int:
            flags = Flag.RESET if reset else Flag.NONE
            wire.send(Header(Op.INIT, flags, table=table, step=number), told)
            answer = self._answer_on(wire)
            if Flag.WANTED in answer.flags:
                self._send_data(wire, raw(values))
                if state is not None:
                    blob = safetensors.torch.save({name: value.contiguous() for name, value in state.items()})
                    self._send_data(wire, memoryview(blob))
                    wire.send(Header(Op.DATA))
                answer = self._answer_on(wire)
            return answer.count

        return self._heard(table, self._ask(request))

    def _heard(self, table: int, version: int) -> int:
        if table == 0 and not self.asynchronous:
            self.version = version
        return version

    def _send_data(self, wire: Wire, data: memoryview) -> None:
        for low in range(0, len(data), SMALL):
            wire.send(Header(Op.DATA), data[low : low + SMALL])

    def share(self, table: int, gradient: Shared, nbytes: int, plan: Plan) -> bool:
        """Offers memory for pushes, and takes the server's for pulls; False when it cannot be."""
        self.shared.pop(table, None)
        self._shares[table] = (table, gradient, nbytes, plan)
        assert self._wire is not None
        self._wire.send(Header(Op.SHARE, table=table), Share(os.getpid(), gradient.fd, nbytes).pack())
        answer = self._answer_on(self._wire)
        if Flag.SHARED not in answer.flags:
            del self._shares[table]
            return False
        data = bytearray(Share.SIZE)
        self._wire.receive_into(answer, memoryview(data))
        told = Share.unpack(bytes(data))
        try:
            theirs = Shared.open(told.pid, told.fd, self._boot, plan.nbytes, writable=False)
            self.shared[table] = theirs.tensor(plan.layout.kind)
        except (OSError, ValueError) as error:
            raise ServerError(f"{self.name}: its shared memory cannot be read ({error})") from None
        return True

    def push(self, header: Header, payload: torch.Tensor | None) -> None:
        piece = Pushed(header, payload)
        try:
            self._send(piece)
        except (OSError, EOFError):
            pass  # the commit will find it out, and push again
        self._pushed.setdefault(header.table, []).append(piece)

    def _send(self, piece: Pushed) -> None:
        if self._wire is None:
            raise EOFError
        if piece.payload is None:
            self._wire.hold(piece.header)
        else:
            self._wire.send(piece.header, raw(piece.payload))

    def commit(self, table: int, step: int, commit: Commit, flags: Flag, num_squares: int) -> Result:
        num_ranks = self._hello.num_ranks

        def request(wire: Wire) -> Result:
            wire.send(Header(Op.COMMIT, flags, table=table, step=step), commit.pack())
            data = bytearray(Result.size(num_ranks, num_squares))
            wire.receive_into(self._answer_on(wire), memoryview(data))
            return Result.unpack(bytes(data), num_ranks, num_squares)

        result = self._ask(request)
        if Flag.PREPARE not in flags:
            self._pushed.pop(table, None)
            self._heard(table, result.version)
        return result

    def apply(self, table: int, step: int, commit: Commit, apply: Apply, num_squares: int) -> tuple[int, int]:
        """(version, staleness)."""
        boot = self._boot

        def request(wire: Wire) -> tuple[int, int]:
            if self._boot != boot:  # it forgot what it had prepared
                wire.send(Header(Op.COMMIT, Flag.PREPARE, table=table, step=step), commit.pack())
                data = bytearray(Result.size(self._hello.num_ranks, num_squares))
                wire.receive_into(self._answer_on(wire), memoryview(data))
            wire.send(Header(Op.APPLY, table=table, step=step), apply.pack())
            answer = self._answer_on(wire)
            return answer.count, answer.step

        version, staleness = self._ask(request)
        self._pushed.pop(table, None)
        return self._heard(table, version), staleness

    def commit_quietly(self, table: int, step: int, commit: Commit) -> None:
        """The answer comes with the next pull."""

        def request(wire: Wire) -> None:
            wire.send(Header(Op.COMMIT, Flag.QUIET, table=table, step=step), commit.pack())

        self._ask(request)
        self._pushed.pop(table, None)

    def pull(self, table: int, start: int, into: torch.Tensor, spare: torch.Tensor | None) -> int:
        """Values [start, start + len(into)) of the server's. spare: this worker's memory that the server shares, at the
        same place, for async mode."""

        def request(wire: Wire) -> int:
            flags = Flag.SHARED if table in self.shared and spare is not None else Flag.NONE
            wire.send(Header(Op.PULL, flags, table=table, start=start, count=len(into)))
            answer = self._answer_on(wire)
            if Flag.SHARED in answer.flags:
                assert spare is not None
                shm.copy(into, spare if self.asynchronous else self.shared[table][start : start + len(into)])
            else:
                wire.receive_into(answer, raw(into))
            return answer.count

        version = self._ask(request)
        if table == 0:
            self.version = version
        return version

    def read(self, table: int, into: torch.Tensor) -> int:
        """As a pull of all of a shared table's values, after a commit in sync mode: until this worker's next one nobody
        changes them, and nobody need be asked."""
        shm.copy(into, self.shared[table])
        return self.version

    def side(self, values: torch.Tensor) -> None:
        """Into `values`."""
        number = self._next()

        def request(wire: Wire) -> None:
            codec = 0 if values.dtype == torch.float64 else 1
            wire.send(Header(Op.SIDE, codec=codec, step=number), raw(values))
            wire.receive_into(self._answer_on(wire), raw(values))

        self._ask(request)

    def small(self, op: Op, *, start: int = 0, count: int = 0, payload: bytes = b"", numbered: bool = False) -> Header:
        number = self._next() if numbered else 0

        def request(wire: Wire) -> Header:
            wire.send(Header(op, step=number, start=start, count=count), payload)
            return self._answer_on(wire)

        return self._ask(request)

    def state(self, table: int) -> dict[str, torch.Tensor]:
        def request(wire: Wire) -> dict[str, torch.Tensor]:
            wire.send(Header(Op.STATE, table=table))
            held = bytearray()
            while (header := self._answer_on(wire, Op.DATA)).nbytes:
                held += wire.receive_small(header)
            return safetensors.torch.load(bytes(held))

        return self._ask(request)

    def load(self, table: int, state: dict[str, torch.Tensor]) -> None:
        """An optimizer's state for a table that there is."""

        def request(wire: Wire) -> None:
            wire.send(Header(Op.LOAD, table=table))
            self._send_data(wire, memoryview(safetensors.torch.save(state)))
            wire.send(Header(Op.DATA))
            self._answer_on(wire)

        self._ask(request)

    def goodbye(self) -> None:
        try:
            if self._wire is not None:
                self._wire.limit(5.0)
                self._wire.send(Header(Op.BYE))
                self._answer_on(self._wire)
        except (OSError, EOFError, WireError, ServerError):
            pass  # it is gone, and that was the wish
