"""What gloo and parameter servers cost on this machine, without a network between."""

from __future__ import annotations

import itertools
import os
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist

from shoal.base.errors import ShoalError
from shoal.forecast.probing.task import Task
from shoal.kvstore.client import Client
from shoal.kvstore.layout import Layout, Terms
from shoal.kvstore.server import Server
from shoal.kvstore.updater import describe

SMALL, LARGE = 1 << 12, 1 << 22
"""Bytes between which the cost of an all-reduce is taken to be a line."""
SERVED = 1 << 20
"""Numbers that a parameter server holds in the measurement."""


class Costs(NamedTuple):
    """Of gloo's all-reduce between two processes: seconds of a message and of a byte, by the clock and of this
    process's cores."""

    hop_s: float
    byte_s: float
    core_hop_s: float
    core_byte_s: float


def gloo(rank: int) -> Costs:
    """As processes here find them, without a network between."""
    two: Any = dist.new_group([0, 1], backend="gloo")
    if rank > 1:
        return Costs(0.0, 0.0, 0.0, 0.0)
    took = {}
    for nbytes in (SMALL, LARGE):
        tensor = torch.zeros(nbytes // 4)
        took[nbytes] = _timed(lambda tensor=tensor: dist.all_reduce(tensor, group=two), two, 0.5)
    (clock, cores) = (_line(small, large) for small, large in zip(took[SMALL], took[LARGE], strict=True))
    return Costs(*clock, *cores)


def _line(small: float, large: float) -> tuple[float, float]:
    """(a message, a byte) of what an all-reduce of SMALL and of LARGE bytes takes; two processes send two messages one
    after the other."""
    byte_s = max(0.0, large - small) / (LARGE - SMALL)
    return max(0.0, small - SMALL * byte_s) / 2, byte_s


def servers(folder: Path, task: Task, rank: int) -> tuple[float, float, float]:
    """(seconds a question, a byte over TCP, a byte through shared memory) with two workers and one server here."""
    if rank > 1:
        dist.barrier()
        return 0.0, 0.0, 0.0
    secret = bytes.fromhex(task.secret)
    call_s, byte_s = 0.0, []
    for number, shared in enumerate((False, True)):
        address = _address(folder, number, task.limit_s)
        client = Client([address], rank, 2, secret, shared_memory=shared)
        held = [torch.zeros(SERVED)]
        described = describe(torch.optim.SGD(held, lr=0.0, momentum=0.9), held)
        client.init(held[0], Layout.of([("all", held[0])]), described, Terms())
        client.gradient.zero_()
        small = torch.zeros(4, dtype=torch.float64)
        if not shared:
            call_s = _timed_by_client(client, lambda client=client, small=small: client.side(small), 0.3)
        took = _timed_by_client(client, _round(client, held[0]), 0.7)
        # Two workers, there and back, four bytes a number; the commit and the pull are questions, too.
        byte_s.append(max(0.0, took - 2 * call_s) / (2 * 2 * 4 * SERVED))
        client.close()
    dist.barrier()
    return call_s, byte_s[0], byte_s[1]


def _timed(work: Callable[[], object], group: Any, budget_s: float) -> tuple[float, float]:
    """(median seconds, mean seconds of this process's cores) of what two processes do together; the first decides how
    often."""
    for _ in range(2):
        work()
    began = time.perf_counter()
    work()
    count = torch.tensor([max(5, min(200, int(budget_s / max(1e-6, time.perf_counter() - began))))])
    dist.broadcast(count, src=0, group=group)
    took, computed = [], time.process_time()
    for _ in range(int(count)):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return statistics.median(took), (time.process_time() - computed) / int(count)


def _timed_by_client(client: Client, work: Callable[[], object], budget_s: float) -> float:
    """The same where the server is what they have in common."""
    work()
    began = time.perf_counter()
    work()
    mine = torch.tensor([budget_s / max(1e-6, time.perf_counter() - began)], dtype=torch.float64)
    count = max(5, min(100, int(client.side(mine)[0] / 2)))
    took = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _round(client: Client, flat: torch.Tensor) -> Callable[[], object]:
    """A synchronous step of a client, but for computing."""
    steps = itertools.count(1)

    def turn() -> None:
        client.push(0, client.gradient)
        client.commit(next(steps), lr=0.0)
        client.pull(flat)

    return turn


def _address(folder: Path, number: int, limit_s: float) -> str:
    until, path = time.monotonic() + limit_s, folder / f"address-{number}"
    while not path.exists():
        if time.monotonic() > until:
            raise ShoalError("the probe's parameter server did not start")
        time.sleep(0.01)
    return path.read_text()


def serve(folder: Path, task: Task) -> NoReturn:
    """Two servers, one after the other: one for TCP, one for shared memory."""
    for number in range(2):
        listening = socket.create_server(("127.0.0.1", 0))
        server = Server(listening, bytes.fromhex(task.secret), 2)
        aside = folder / f"address-{number}.aside"
        aside.write_text(":".join(map(str, listening.getsockname()[:2])))
        aside.rename(folder / f"address-{number}")
        server.serve()
    os._exit(0)
