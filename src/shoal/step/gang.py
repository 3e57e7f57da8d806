"""Gang: the processes that act together. One process has the same verbs, so no code asks whether it is distributed."""

from __future__ import annotations

import datetime
import os
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from shoal.base.errors import ShoalError, first_line
from shoal.base.world import World
from shoal.launch.meeting import check_neighbour
from shoal.step.stopwatch import Stopwatch

_MOST_NAMED = 8
"""Missing ranks that a message names."""


class Gang(ABC):
    """Collectives over all workers. Every rank must call the same ones in the same order."""

    rank: int
    num_ranks: int
    device: torch.device
    num_servers: int = 0
    """Parameter servers beside the workers."""

    @cached_property
    def watch(self) -> Stopwatch:
        """Where this member's time goes."""
        return Stopwatch.of(self.device)

    @property
    def process(self) -> int:
        """The rank of the process, as messages name it, where members are more than processes."""
        return self.rank

    @property
    def place(self) -> tuple[int, int]:
        """(number, of how many) among those who are still there, for work that is shared out equally."""
        return self.rank, self.num_ranks

    @property
    def speaks(self) -> bool:
        """Whether this member's figures count, where several compute the same images together."""
        return True

    @property
    def leads(self) -> bool:
        """Whether this is the first of those who are still there, who keeps the run folder and speaks for all."""
        return self.place[0] == 0

    def renew(self) -> None:
        """Finds out who is still there, after a sum to which somebody did not come. A collective."""
        raise ShoalError("a worker did not come to a sum")

    def __deepcopy__(self, memo: object) -> Gang:
        """Copies of a model (its average, say) act in the same gang."""
        return self

    @abstractmethod
    def sum(self, tensor: torch.Tensor) -> None:
        """Adds `tensor` over all ranks, in place; equal bits on every rank."""

    @abstractmethod
    def sum_later(self, tensor: torch.Tensor) -> Pending:
        """As `sum`, at work behind the caller's back until `wait()`."""

    @abstractmethod
    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's `tensor` (equal shapes) who is still there, in rank order."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor) -> None:
        """The first's values into everybody's `tensor`, in place."""

    @abstractmethod
    def barrier(self) -> None:
        """Waits until every rank is here."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the gang; no verb may be called after it."""

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Everybody's bytes, in rank order."""
        sizes = [int(size) for size in self.gather(torch.tensor([len(data)], device=self.device))]
        padded = torch.zeros(max(*sizes, 1), dtype=torch.uint8, device=self.device)
        if data:
            padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)
        told = zip(sizes, self.gather(padded), strict=True)
        return [held[:size].cpu().numpy().tobytes() for size, held in told]

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """The first's bytes, at every rank; the others pass None."""
        size = torch.tensor([len(data) if data is not None else 0], dtype=torch.int64, device=self.device)
        self.broadcast(size)
        held = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        if data:
            held.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        if len(held):
            self.broadcast(held)
        return held.cpu().numpy().tobytes()


class Pending:
    """A collective under way."""

    def __init__(self, work: dist.Work | None = None) -> None:
        self._work = work

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()


class Alone(Gang):
    """A gang of one."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.rank, self.num_ranks, self.device = 0, 1, device or torch.device("cpu")

    def sum(self, tensor: torch.Tensor) -> None:
        pass

    def sum_later(self, tensor: torch.Tensor) -> Pending:
        return Pending()

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor]

    def broadcast(self, tensor: torch.Tensor) -> None:
        pass

    def barrier(self) -> None:
        pass

    def close(self) -> None:
        pass


class Group(Gang):
    """A gang over torch.distributed: gloo on CPU, nccl on CUDA."""

    def __init__(self, device: torch.device | None = None, group: dist.ProcessGroup | None = None) -> None:
        """Wraps a process group that this process is in; None: the default one, which must have been initialised."""
        self.group = group
        self.rank, self.num_ranks = dist.get_rank(group), dist.get_world_size(group)
        self.device = device or torch.device("cpu")

    def sum(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor, group=self.group)

    def sum_later(self, tensor: torch.Tensor) -> Pending:
        return Pending(dist.all_reduce(tensor, group=self.group, async_op=True))

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        held = [torch.empty_like(tensor) for _ in range(self.num_ranks)]
        dist.all_gather(held, tensor, group=self.group)
        return held

    def broadcast(self, tensor: torch.Tensor) -> None:
        dist.broadcast(tensor, group=self.group, group_src=0)

    def barrier(self) -> None:
        self.sum(torch.zeros(1, device=self.device))

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def join(
    world: World | None,
    device: torch.device,
    *,
    listen_fd: int | None = None,
    wait_s: float = 120.0,
    connect_s: float = 20.0,
    limit_s: float = 1800.0,
) -> Gang:
    """The gang of `world`; Alone when there is none or it has one rank.

    listen_fd: an open listening socket for rank 0's store, which no other program can take meanwhile.
    wait_s: how long to wait for missing ranks, whose absence is a ShoalError; connect_s: how long those who have met
    may take to connect to each other; limit_s: how long a collective may take.
    """
    if world is None or world.num_ranks == 1:
        return Alone(device)
    host, _, port = world.rendezvous.rpartition(":")
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host,
            int(port),
            world.num_ranks,
            is_master=world.rank == 0,
            timeout=datetime.timedelta(seconds=wait_s),
            master_listen_fd=listen_fd if world.rank == 0 else None,
            wait_for_workers=False,
            multi_tenant=True,
        )
        absent = _meet(store, world, wait_s)
        if not absent and device.type == "cpu":
            check_neighbour(store, world, connect_s / 2)
    except (dist.DistError, RuntimeError, ValueError) as error:
        raise ShoalError(
            f"rank {world.rank} of {world.num_ranks}: no gang at {world.rendezvous} within {wait_s:.0f} s "
            f"({first_line(error)})"
        ) from None
    if absent:
        who = ", ".join(map(str, absent[:_MOST_NAMED])) + (", …" if len(absent) > _MOST_NAMED else "")
        raise ShoalError(f"rank {who} of {world.num_ranks} did not come to {world.rendezvous} within {wait_s:.0f} s")
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=dist.PrefixStore("shoal", store),  # type: ignore[attr-defined]
            rank=world.rank,
            world_size=world.num_ranks,
            timeout=datetime.timedelta(seconds=connect_s),
        )
        _allow(datetime.timedelta(seconds=limit_s))
    except (dist.DistError, RuntimeError, ValueError) as error:
        chosen = os.environ.get("GLOO_SOCKET_IFNAME")
        raise ShoalError(
            f"rank {world.rank} of {world.num_ranks}: all have met at {world.rendezvous}, but cannot connect to each "
            f"other within {connect_s:.0f} s"
            + (f" over interface {chosen}" if chosen else "")
            + f"; see which hosts reach each other: shoal doctor -H HOSTS ({first_line(error)})"
        ) from None
    return Group(device)


def _allow(limit: datetime.timedelta) -> None:
    """Lets collectives take so long; their limit until then was that of connecting."""
    set_timeout = getattr(dist, "set_timeout", None)  # torch 2.15 and later
    if set_timeout is not None:
        set_timeout(limit)
    else:
        distributed_c10d._set_pg_timeout(limit)


def _meet(store: Any, world: World, wait_s: float) -> list[int]:
    """Waits until every rank has come to the store; the ranks that have not within `wait_s` seconds."""
    places = [f"here/{rank}" for rank in range(world.num_ranks)]
    store.set(places[world.rank], "")
    later_s = 5.0 if world.rank else 0.0  # who holds the store speaks first; the others lose it with him
    try:
        store.wait(places, datetime.timedelta(seconds=wait_s + later_s))
        return []
    except dist.DistStoreError:
        return [rank for rank, place in enumerate(places) if not store.check([place])]
