"""Session: a server's side of the conversation with one worker. One thread each."""

from __future__ import annotations

import math
import os
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError

from shoal.base.errors import UsageError
from shoal.kvstore import shm
from shoal.kvstore.rounds import FellBehind, GaveUp, Meeting, Member
from shoal.kvstore.shm import Shared
from shoal.kvstore.table import Life, Plan, Table, added, clip
from shoal.kvstore.talk import APPLIED, DROPPED, PREPARED, REDO, Apply, Commit, Hello, Result, Share, Welcome
from shoal.kvstore.wire import Flag, Header, Op, Wire, WireError, raw

if TYPE_CHECKING:
    from shoal.kvstore.server import Server

_HELLO_S = 5.0
_SIDES = (torch.float64, torch.int64)
CHUNK = 1 << 20
"""Bytes of a DATA message at most."""
_MOST_TABLES = 1 << 20


class Session:
    """Reads messages and answers them until the connection ends."""

    def __init__(self, server: Server, connection: socket.socket, host: str) -> None:
        self._server, self._wire, self._host = server, Wire(connection), host
        self._connection = connection
        self._member: Member | None = None
        self._pending: dict[int, Meeting] = {}
        """Table -> a commit that this worker did not wait for."""
        self._do: dict[Op, Callable[[Header], None]] = {
            Op.INIT: self._init,
            Op.SHARE: self._share,
            Op.PUSH: self._push,
            Op.COMMIT: self._commit,
            Op.APPLY: self._apply,
            Op.PULL: self._pull,
            Op.SIDE: self._side,
            Op.BARRIER: self._barrier,
            Op.STATE: self._state,
            Op.LOAD: self._load,
            Op.OPTIMIZER: self._optimizer,
            Op.DEAD: self._dead,
            Op.TAKE: self._take,
            Op.SEEK: self._seek,
        }

    @property
    def member(self) -> Member:
        assert self._member is not None
        return self._member

    def run(self) -> None:
        """The life of the connection."""
        said_goodbye = False
        told = self._server.tell
        try:
            self._greet()
            while (header := self._wire.receive()) is not None:
                if header.op == Op.BYE:
                    said_goodbye = True
                    self._server.rounds.leaves(self.member)
                    self._wire.send(Header(Op.OK))
                    break
                if header.op not in self._do:
                    raise WireError(f"{header.op.name} is not for a server")
                self._do[header.op](header)
        except (WireError, UsageError, GaveUp, msgspec.ValidationError, msgspec.DecodeError, SafetensorError) as error:
            if not isinstance(error, GaveUp) or self._member is None:
                told(f"{self._who}: {error}; connection closed")
            self._refuse(str(error))
        except FellBehind:
            self._refuse("the others go on from a checkpoint", Flag.RESET)
        except (OSError, EOFError):
            if self._member is None:
                told(f"{self._who}: went away before it said who it is")
        except Exception as error:
            told(f"{self._who}: {type(error).__name__}: {error}; connection closed")
            self._refuse(f"the server failed: {type(error).__name__}: {error}")
        finally:
            self._wire.close()
            if self._member is not None and not said_goodbye:
                self._server.lost(self, self._member)

    @property
    def _who(self) -> str:
        return self._member.name if self._member else self._host

    def _refuse(self, text: str, flags: Flag = Flag.NONE) -> None:
        try:
            self._wire.send(Header(Op.ERROR, flags, count=self._server.rounds.rollbacks), text.encode()[:1000])
        except OSError:
            pass

    def _answer(self, header: Header | None = None, payload: memoryview | bytes = b"") -> None:
        self._wire.send(header or Header(Op.OK), payload)

    def _table(self, header: Header) -> Table:
        table = self._server.tables.get(header.table)
        if table is None:
            raise WireError(f"{header.op.name}: no table {header.table}")
        return table

    def _greet(self) -> None:
        self._wire = Wire(self._server.cover.greet(self._connection))
        self._wire.limit(_HELLO_S, self._server.limits.silence_s)
        header = self._wire.receive()
        if header is None:
            raise EOFError
        if header.op != Op.HELLO or header.nbytes != Hello.SIZE:
            raise WireError(f"said {header.op.name} before HELLO")
        hello = Hello.unpack(self._wire.receive_small(header, Hello.SIZE))
        server = self._server
        if not hello.rank < hello.num_ranks == len(server.rounds.members):
            raise WireError(
                f"worker {hello.rank} of {hello.num_ranks} cannot be: this job has {len(server.rounds.members)} workers"
            )
        if (hello.server, hello.num_servers) != (server.rank, server.num_servers):
            raise WireError(
                f"it takes this for server {hello.server} of {hello.num_servers}, "
                f"but it is {server.rank} of {server.num_servers}"
            )
        self._member = server.joined(self, hello, self._host)
        self._wire.limit(0)
        first = server.tables.get(0)
        known = Header(Op.OK, start=first.version if first else 0, count=len(server.tables))
        self._answer(known, Welcome(server.boot, os.getpid(), server.host).pack())

    # Tables ---------------------------------------------------------------------------------------------------------

    def _init(self, header: Header) -> None:
        data = self._wire.receive_small(header)
        plan = msgspec.json.decode(data, type=Plan)
        if not 0 <= plan.low <= plan.high <= plan.layout.size or header.table >= _MOST_TABLES:
            raise WireError(f"INIT of table {header.table} with values {plan.low} to {plan.high}")
        server, reset = self._server, Flag.RESET in header.flags
        if header.table in server.tables and not reset:
            table = server.tables[header.table]
            if table.plan != plan:
                raise WireError(f"table {header.table} is known with another layout, optimizer or terms")
            self._answer(Header(Op.OK, count=table.version))
            return
        values = state = None
        if self.member.rank == min(server.rounds.live):
            self._answer(Header(Op.OK, Flag.WANTED))
            values = self._receive_values(plan)
            state = self._receive_state(plan) if reset else b""
        made = server.rounds.together(
            ("init", header.table),
            self.member,
            header.step,
            (data, values, state),
            f"the start of table {header.table}",
            lambda parts: server.make(header.table, plan, parts),
        )
        self._answer(Header(Op.OK, count=made))

    def _receive_values(self, plan: Plan) -> tuple[torch.Tensor, Shared | None]:
        """As many bytes as the plan has; memory grows with what comes."""
        if shm.available():
            growing = shm.Growing(self._server.boot)
            try:
                self._receive_chunks(plan.nbytes, growing.append)
                shared = growing.sealed(plan.nbytes)
            except BaseException:
                growing.drop()
                raise
            return shared.tensor(plan.layout.kind), shared
        held = bytearray()
        self._receive_chunks(plan.nbytes, held.extend)
        return torch.frombuffer(held, dtype=plan.layout.kind) if held else torch.zeros(0, dtype=plan.layout.kind), None

    def _receive_state(self, plan: Plan) -> bytes:
        """A safetensors file, or nothing; its end is an empty message."""
        held = bytearray()
        most = 8 * plan.nbytes + (16 << 20)
        while True:
            header = self._data()
            if not header.nbytes:
                return bytes(held)
            held += self._wire.receive_small(header, min(CHUNK, most - len(held)))

    def _receive_chunks(self, nbytes: int, take: Callable[[bytes], Any]) -> None:
        while nbytes:
            data = self._wire.receive_small(self._data(), min(CHUNK, nbytes))
            if not data:
                raise WireError("an empty DATA")
            nbytes -= len(data)
            take(data)

    def _data(self) -> Header:
        header = self._wire.receive()
        if header is None:
            raise EOFError
        if header.op != Op.DATA:
            raise WireError(f"{header.op.name} where DATA is due")
        return header

    def _share(self, header: Header) -> None:
        """The worker's gradient, and this server's values, as memory of both."""
        told = Share.unpack(self._exactly(header, Share.SIZE))
        table = self._table(header)
        flat = table.plan.layout.size * table.plan.layout.kind.itemsize
        try:
            if table.shared is None or told.nbytes != flat:
                raise ValueError(f"{told.nbytes} bytes, not {flat}")
            shared = Shared.open(told.pid, told.fd, self.member.session, flat, writable=True)
        except (OSError, ValueError):  # other user, other pid namespace: the network will do
            self._answer()
            return
        table.stage(self.member.rank).share(shared, table.plan.low)
        own = Share(os.getpid(), table.shared.fd, table.plan.nbytes)
        self._answer(Header(Op.OK, Flag.SHARED), own.pack())

    def _exactly(self, header: Header, size: int) -> bytes:
        if header.nbytes != size:
            raise WireError(f"{header.op.name} with {header.nbytes} bytes, not {size}")
        return self._wire.receive_small(header, size)

    # Rounds ---------------------------------------------------------------------------------------------------------

    def _settled(self, table: int) -> None:
        """This worker's earlier commit, which it did not wait for, is done."""
        pending = self._pending.pop(table, None)
        if pending is not None:
            self._server.rounds.wait(pending)

    def _push(self, header: Header) -> None:
        table = self._table(header)
        self._settled(header.table)
        where = table.checked(header.start, header.count)
        stage = table.stage(self.member.rank)
        if Flag.NODE in header.flags:
            node = (header.step >> 32, header.step & 0xFFFFFFFF)
            table.check_node(node)
            self._wire.receive_into(header, raw(stage.node(node)[where]))
            return
        if Flag.SHARED in header.flags:
            if stage.shared is None or header.nbytes:
                raise WireError("PUSH into memory that is not shared")
        elif header.codec == 0:
            self._wire.receive_into(header, raw(stage.flat[where]))
        else:
            if header.codec != table.codec.number:
                raise WireError(f"PUSH compressed by codec {header.codec}, agreed is {table.codec.number}")
            packed = stage.packed(table.codec.nbytes(header.count, table.values.dtype))
            self._wire.receive_into(header, raw(packed))
            table.codec.decode(packed, stage.flat[where])
        stage.pushed.append((where.start, where.stop))

    def _commit(self, header: Header) -> None:
        table = self._table(header)
        self._server.step = header.step
        commit = Commit.unpack(self._exactly(header, Commit.SIZE))
        self._settled(header.table)
        prepare, quiet = Flag.PREPARE in header.flags, Flag.QUIET in header.flags
        width = len(self._server.rounds.members), table.num_squares if prepare else 0
        if table.asynchronous:
            result = self._commit_alone(table, header, commit, prepare)
            if not quiet:
                self._answer(Header(Op.OK, step=header.step), result.pack(*width))
            return
        rounds = self._server.rounds
        if quiet:
            self._pending[header.table] = rounds.come(
                ("commit", header.table),
                self.member,
                header.step,
                commit,
                f"push {header.step} of key {header.table}",
                lambda parts: self._server.quietly(table, parts),
            )
            return
        result = rounds.together(
            ("commit", header.table),
            self.member,
            header.step,
            commit,
            f"step {header.step}",
            lambda parts: self._server.commit(table, parts, prepare, header.step),
        )
        if result.status == REDO:  # the same number comes again
            self.member.answered.pop(("commit", header.table), None)
        self._answer(Header(Op.OK, step=header.step), result.pack(*width))

    @property
    def _life(self) -> Life:
        return self.member.rank, self.member.session.hex()

    def _counts(self, commit: Commit) -> bool:
        """Whether nobody else did the work that this commit ends."""
        return commit.position is None or self._server.positions.finish(self.member.rank, commit.position)

    def _commit_alone(self, table: Table, header: Header, commit: Commit, prepare: bool) -> Result:
        """async: what this worker pushed, whole and at once."""
        rank = self.member.rank
        if table.knows(self._life, header.step):  # the answer was lost
            table.drop([rank])
            return Result(APPLIED, commit.ask, 0, table.version, 0, 0.0, (), (0.0,) * table.num_squares)
        self._server.wait_for_optimizer(table)
        total = table.total([rank])
        squares = table.squares(total)
        if prepare:
            finite = commit.finite and all(map(math.isfinite, squares)) and self._counts(commit)
            table.prepared[rank] = total, commit, header.step
            return self._result(PREPARED if finite else DROPPED, commit.ask, table, squares)
        norm, scale = clip(added(squares), commit.clip_norm, table.values.dtype)
        if commit.finite and norm < float("inf"):
            counts = partial(self._counts, commit)
            staleness = table.apply_alone(self._life, header.step, total, commit, scale, counts)
        else:
            self._counts(commit)
            staleness = None
        table.drop([rank])
        self._server.changed = True
        status = DROPPED if staleness is None else APPLIED
        return Result(status, commit.ask, 0, table.version, staleness or 0, norm, (), ())

    def _result(self, status: int, asked: int, table: Table, squares: list[float]) -> Result:
        return Result(status, asked, 0, table.version, 0, 0.0, (), tuple(squares))

    def _apply(self, header: Header) -> None:
        table = self._table(header)
        apply = Apply.unpack(self._exactly(header, Apply.SIZE))
        rank, staleness = self.member.rank, 0
        if table.asynchronous:
            prepared = table.prepared.pop(rank, None)
            if prepared is not None and apply.status == APPLIED:
                total, commit, step = prepared
                done = table.apply_alone(self._life, step, total, commit, apply.scale)
                staleness = done or 0
                self._server.changed = True
            table.drop([rank])
        else:
            table.apply_prepared(header.step, apply)
            if apply.status == REDO:  # the same number comes again
                self.member.answered.pop(("commit", header.table), None)
        self._answer(Header(Op.OK, step=staleness, count=table.version))

    def _pull(self, header: Header) -> None:
        table = self._table(header)
        where = table.checked(header.start, header.count)
        self._settled(header.table)
        stage = table.stage(self.member.rank)
        if not table.asynchronous:
            # Nobody changes the values before this worker commits again.
            if Flag.SHARED in header.flags and stage.shared is not None:
                self._answer(Header(Op.OK, Flag.SHARED, count=table.version))
            else:
                self._answer(Header(Op.OK, count=table.version), raw(table.values[where]))
            return
        with table.lock:  # a copy in what held the push, which is used up by now
            shm.copy(stage.flat[where], table.values[where])
            version = table.version
        if Flag.SHARED in header.flags and stage.shared is not None:
            self._answer(Header(Op.OK, Flag.SHARED, count=version))
        else:
            self._answer(Header(Op.OK, count=version), raw(stage.flat[where]))

    # Small things ---------------------------------------------------------------------------------------------------

    def _side(self, header: Header) -> None:
        if header.codec >= len(_SIDES):
            raise WireError(f"SIDE of type {header.codec}")
        part = self._wire.receive_small(header)
        kind = _SIDES[header.codec]

        def add(parts: dict[int, bytes]) -> bytes:
            if len({len(data) for data in parts.values()}) > 1:
                raise GaveUp(f"sums of different sizes: {sorted({len(data) // 8 for data in parts.values()})} numbers")
            if not part:
                return b""
            total: torch.Tensor | None = None
            for data in parts.values():
                values = torch.frombuffer(bytearray(data), dtype=kind)
                total = values if total is None else total.add_(values)
            assert total is not None
            return bytes(raw(total))

        what = f"step {self._server.step + 1}"  # numbers of sums mean nothing to a person
        self._answer(payload=self._server.rounds.together("side", self.member, header.step, part, what, add))

    def _barrier(self, header: Header) -> None:
        step = self._server.step
        what = f"a barrier {f'after step {step}' if step >= 0 else 'before the first step'}"
        self._server.rounds.together("barrier", self.member, header.step, None, what, lambda parts: None)
        self._answer()

    def _state(self, header: Header) -> None:
        table = self._table(header)
        self._settled(header.table)
        state = {name: value.contiguous() for name, value in table.state().items()}
        data = memoryview(safetensors.torch.save(state))
        for low in range(0, len(data), CHUNK):
            self._answer(Header(Op.DATA), data[low : low + CHUNK])
        self._answer(Header(Op.DATA))

    def _load(self, header: Header) -> None:
        table = self._table(header)
        table.load(safetensors.torch.load(self._receive_state(table.plan)))
        self._answer()

    def _optimizer(self, header: Header) -> None:
        """For every table, now and later: {"optimizer", "rescale"} or {"lr"}."""
        told = msgspec.json.decode(self._wire.receive_small(header))
        if not isinstance(told, dict):
            raise WireError("OPTIMIZER without options")
        self._server.set_optimizer(told)
        self._answer()

    def _dead(self, header: Header) -> None:
        """The worker may tell of those who died before this server was started again."""
        ranks = struct.unpack(f"<{header.nbytes // 4}I", self._wire.receive_small(header)[: header.nbytes // 4 * 4])
        if any(rank >= len(self._server.rounds.members) for rank in ranks):
            raise WireError(f"DEAD of workers {ranks}")
        self._server.rounds.were_gone(list(ranks))
        self._answer(Header(Op.OK, count=self._server.rounds.num_dead()))

    def _take(self, header: Header) -> None:
        """Answers position + 1, or 0."""
        answered = self.member.answered.get("take")
        if answered is None or answered[0] != header.step:
            position = self._server.positions.take(self.member.rank, header.count, header.start)
            answered = self.member.answered["take"] = header.step, 0 if position is None else position + 1
        self._answer(Header(Op.OK, count=answered[1]))

    def _seek(self, header: Header) -> None:
        self._server.positions.seek(header.count)
        self._server.save_at_once()
        self._answer()

    def drop(self) -> None:
        """Another connection takes this one's place."""
        self._wire.shutdown()
