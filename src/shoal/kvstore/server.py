"""Server: holds parameters for workers. One thread per worker; all that a stranger can reach is the handshake."""

from __future__ import annotations

import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from shoal.base.errors import REQUEUE, ShoalError
from shoal.kvstore import shm
from shoal.kvstore.layout import Limits
from shoal.kvstore.positions import Positions
from shoal.kvstore.rounds import GaveUp, Member, Rounds
from shoal.kvstore.session import Session
from shoal.kvstore.shm import Shared
from shoal.kvstore.snapshot import OfTable, Snapshot, damaged
from shoal.kvstore.table import Plan, Table, added, clip
from shoal.kvstore.talk import APPLIED, DROPPED, PREPARED, REDO, Commit, Hello, Result
from shoal.kvstore.tls import Cover
from shoal.launch.handshake import Door

_TICK_S = 0.1
_OPTIMIZER_S = 10.0
"""How long a push waits in async mode for worker 0 to set an optimizer."""


def to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class LoudDoor(Door):
    """A line for everyone who did not prove themselves."""

    tell: Callable[[str], None] = staticmethod(to_stderr)

    def _refuse(self, guest: Any) -> None:
        late = time.monotonic() >= guest.limit
        why = "said nothing in time" if late and not guest.said else "did not prove that it holds the job's secret"
        self.tell(f"{':'.join(map(str, guest.address))}: {why}; connection closed")
        super()._refuse(guest)


class Server:
    """`serve` returns when the last worker said goodbye."""

    def __init__(
        self,
        listening: socket.socket,
        secret: bytes,
        num_workers: int,
        *,
        rank: int = 0,
        num_servers: int = 1,
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        snapshot: Path | None = None,
        snapshot_s: float = 10.0,
        cover: Cover | None = None,
        tell: Callable[[str], None] = to_stderr,
    ) -> None:
        """snapshot: a file; where it is, this server goes on from it, and it is written every `snapshot_s` seconds in
        which an asynchronous table changed. (Synchronous training goes back to its checkpoint instead.)
        cover: of connections between hosts; absent: as the environment says."""
        self.cover = Cover.from_env() if cover is None else cover
        self.rank, self.num_servers, self.limits, self.tell = rank, num_servers, limits, tell
        self.rounds = Rounds(num_workers, limits, tell)
        self.rounds.forget = self._forget
        self.tables: dict[int, Table] = {}
        self.positions = Positions()
        self.boot, self.host = secrets.token_bytes(8), shm.host()
        self.changed = False
        """Since the last snapshot."""
        self.step = -1
        """Of the last commit."""
        self._door = LoudDoor(listening, secret, f"kvstore {rank}")
        self._door.tell = tell
        self._sessions: dict[int, Session] = {}
        self._guard, self._saving = threading.Lock(), threading.Lock()
        self._leaving = 0
        self._optimizer: dict[str, Any] = {}
        self._snapshot, self._snapshot_s = snapshot, snapshot_s
        if snapshot is not None and snapshot.exists():
            self._restore(snapshot)

    def serve(self) -> int:
        """Exit code: 0 after the last goodbye, 1 when a round had to be given up or nobody said goodbye."""
        saver = threading.Thread(target=self._save_now_and_then, daemon=True)
        if self._snapshot is not None:
            saver.start()
        try:
            while not self.rounds.ended():
                if self._leaving > 1 or (self._leaving and not self._sessions):
                    return REQUEUE
                accepted = self._door.accept(_TICK_S)
                if accepted is not None:
                    connection, address = accepted
                    session = Session(self, connection, str(address[0]))
                    threading.Thread(target=session.run, daemon=True).start()
                self.rounds.tick()
        finally:
            self._door.close()
        if self.rounds.gone is not None:
            return 1
        return 0 if any(member.state == "left" for member in self.rounds.members) else 1

    def asked_to_leave(self) -> None:
        """A signal: workers got it too and finish first. The second one is meant for this server."""
        self._leaving += 1

    # Workers --------------------------------------------------------------------------------------------------------

    def joined(self, session: Session, hello: Hello, host: str) -> Member:
        with self._guard:
            member = self.rounds.members[hello.rank]
            fresh = member.session != hello.session
            member = self.rounds.joins(hello.rank, host, hello.session, hello.rollbacks)
            old = self._sessions.get(hello.rank)
            self._sessions[hello.rank] = session
        if old is not None:
            old.drop()
        if fresh:
            self._forget(hello.rank)
        for table in self.tables.values():  # what it pushed and did not commit, it pushes again
            table.drop([hello.rank])
        return member

    def lost(self, session: Session, member: Member) -> None:
        with self._guard:
            if self._sessions.get(member.rank) is not session:
                return
            del self._sessions[member.rank]
            self.rounds.loses(member)

    def _forget(self, rank: int) -> None:
        self.positions.give_back(rank)
        for table in list(self.tables.values()):
            table.forget(rank)

    # Tables ---------------------------------------------------------------------------------------------------------

    def make(self, number: int, plan: Plan, parts: dict[int, Any]) -> int:
        """A table from what all workers said; the first one's values. Returns its version."""
        told = {rank: data for rank, (data, _, _) in parts.items()}
        first = min(rank for rank, (_, values, _) in parts.items() if values is not None)
        for rank, data in told.items():
            if data != told[first]:
                raise GaveUp(f"workers {first} and {rank} differ in layout, optimizer or terms of table {number}")
        _, (values, shared), state = parts[first]
        if plan.terms.shards is not None:  # a kernel's bits depend on how many threads share the work
            torch.set_num_threads(1)
        table = Table(plan, values, shared)
        if "optimizer" in self._optimizer and plan.optimizer is None:
            table.set_optimizer(self._optimizer["optimizer"])
            table.rescale = self._optimizer["rescale"]
        if state:
            table.load(safetensors.torch.load(state))
        old = self.tables.get(number)
        if old is not None:
            table.version = old.version
            self.rounds.anew(("commit", number))
            if old.shared is not None:
                old.shared.close()
        self.rounds.stops = plan.terms.mode == "sync" and plan.terms.on_dead == "stop"
        self.tables[number] = table
        if table.asynchronous:
            self.save_at_once()
        return table.version

    def set_optimizer(self, told: dict[str, Any]) -> None:
        if "lr" in told:
            for table in self.tables.values():
                table.set_rate(float(told["lr"]))
            for group in self._optimizer.get("optimizer", {}).get("groups", ()):
                group["lr"] = float(told["lr"])
            return
        for table in list(self.tables.values()):
            with table.lock:
                table.set_optimizer(told["optimizer"])
                table.rescale = float(told["rescale"])
        with self.rounds.changed:
            self._optimizer = told
            self.rounds.changed.notify_all()

    def wait_for_optimizer(self, table: Table) -> None:
        """An asynchronous push without one would lose the other workers' pushes."""
        with self.rounds.changed:
            if not self.rounds.changed.wait_for(lambda: table.has_optimizer, _OPTIMIZER_S):
                raise GaveUp("dist_async: a push, but worker 0 has not called set_optimizer")

    def commit(self, table: Table, parts: dict[int, Commit], prepare: bool, step: int) -> Result:
        """sync: the end of a round, by whoever came last."""
        rounds, ranks = self.rounds, list(parts)
        generation, live = rounds.generation, tuple(rounds.live)
        asked = max(part.ask for part in parts.values())
        if any(part.generation != generation for part in parts.values()):
            table.drop(ranks)
            return Result(REDO, asked, generation, table.version, 0, 0.0, live, ())
        total = table.total(ranks)
        squares = table.squares(total)
        finite = all(part.finite for part in parts.values())
        first = parts[ranks[0]]
        table.drop(ranks)
        if prepare:
            table.prepare(step, total)
            status = PREPARED if finite else DROPPED
            return Result(status, asked, generation, table.version, 0, 0.0, live, tuple(squares))
        norm, scale = clip(added(squares), first.clip_norm, table.values.dtype)
        finite = finite and norm < float("inf")
        if finite:
            table.apply(total, first.lr, scale)
        return Result(APPLIED if finite else DROPPED, asked, generation, table.version, 0, norm, live, ())

    def quietly(self, table: Table, parts: dict[int, Commit]) -> None:
        """A KVStore's round: there is nobody to tell."""
        total = table.total(list(parts))
        table.drop(list(parts))
        table.apply(total, None, 1.0)

    # Snapshots ------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Training goes on where it cannot be written."""
        try:
            with self._saving:
                self._save()
        except OSError as error:
            self.tell(f"server {self.rank}: no snapshot ({error})")

    def save_at_once(self) -> None:
        """Where work begins: a server that is killed in its first seconds has something to go on from."""
        if self._snapshot is not None:
            self.save()

    def _save(self) -> None:
        assert self._snapshot is not None
        tensors: dict[str, torch.Tensor] = {}
        tables = []
        positions = self.positions.state()
        for number, table in list(self.tables.items()):
            values, state, version, applied, handed = table.copied(self.positions.state)
            positions = handed if number == 0 else positions
            tensors[f"{number}/values"] = values
            tensors |= {f"{number}/state/{name}": value.contiguous() for name, value in state.items()}
            tables.append(OfTable(number=number, plan=table.plan, version=version, applied=applied, state=[*state]))
        held = Snapshot(tables=tables, positions=positions, optimizer=self._optimizer)
        held.write(self._snapshot, tensors)

    def _restore(self, path: Path) -> None:
        held, tensors = Snapshot.read(path)
        try:
            self._take_up(held, tensors)
        except (LookupError, TypeError, ValueError, RuntimeError, ShoalError) as error:
            raise damaged(path, error) from error
        versions = ", ".join(str(table.version) for table in self.tables.values())
        self.tell(f"server {self.rank}: goes on from its snapshot, version {versions}")

    def _take_up(self, held: Snapshot, tensors: dict[str, torch.Tensor]) -> None:
        self._optimizer = held.optimizer
        for told in held.tables:
            values, shared = _shared_copy(tensors[f"{told.number}/values"], self.boot)
            table = Table(told.plan, values, shared)
            if told.plan.optimizer is None and self._optimizer:
                table.set_optimizer(self._optimizer["optimizer"])
                table.rescale = float(self._optimizer["rescale"])
            prefix = f"{told.number}/state/"
            table.load({name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)})
            table.version, table.applied = told.version, told.applied
            self.tables[told.number] = table
            self.rounds.stops = told.plan.terms.mode == "sync" and told.plan.terms.on_dead == "stop"
        self.positions.load(held.positions)
        self.rounds.restarted = True

    def _save_now_and_then(self) -> None:
        while True:
            time.sleep(self._snapshot_s)
            if self.changed:
                self.changed = False
                self.save()


def _shared_copy(values: torch.Tensor, token: bytes) -> tuple[torch.Tensor, Shared | None]:
    if not shm.available():
        return values.clone(), None
    shared = Shared.make(token, values.numel() * values.element_size())
    held = shared.tensor(values.dtype)
    held.copy_(values)
    return held, shared
