"""Asynchronous workers, played event by event: each takes a shard, computes, pushes and pulls; ports and servers are
queues. What closed forms miss lies in these queues: who waits depends on who came before."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

from shoal.forecast.calibration import Calibration, Network

_CYCLES = 40
_MOST_EVENTS = 200_000


@dataclass(frozen=True)
class Played:
    """What came of it."""

    shards_per_s: float
    """Over all workers."""
    cycle_s: float
    """Mean time of a worker from one shard to its next."""
    compute_s: float
    """The part of it that it computed."""
    staleness: float
    """Mean number of others' pushes between a worker's pull and its push."""


class Queue:
    """Something that one can use at a time: half a port, a server."""

    def __init__(self) -> None:
        self.free = 0.0

    def use(self, now: float, seconds: float) -> float:
        """When it is done, for who comes at `now`."""
        self.free = max(self.free, now) + seconds
        return self.free


def play(
    shard_images: float, workers: int, calibration: Calibration, network: Network, *, seed: int = 0, cycles: int = 0
) -> Played:
    """Lets so many workers train until each has done some 40 shards (fewer where workers are many)."""
    cycles = cycles or max(6, min(_CYCLES, _MOST_EVENTS // (4 * workers)))
    draw = random.Random(seed)
    stage = _Stage(workers, calibration, network)
    compute = calibration.shard(shard_images) + calibration.update_s
    sigma = math.sqrt(math.log1p(calibration.jitter**2))  # a lognormal time of mean 1

    def computing(worker: int) -> float:
        lasts = compute * draw.lognormvariate(-sigma * sigma / 2, sigma)
        return lasts * (network.slow if worker == workers - 1 else 1.0)

    # Each entry: when, worker, what it does then.
    events = [(draw.random() * compute, worker, "take") for worker in range(workers)]
    heapq.heapify(events)
    done, pulled_at, began = 0, [0] * workers, [0.0] * workers
    warm, limit = workers * 2, workers * (cycles + 2)
    start = end = 0.0
    counted, computed, cycled, stale = 0, 0.0, 0.0, 0
    while done < limit:
        now, worker, act = heapq.heappop(events)
        if act == "take":
            began[worker] = now
            lasts = computing(worker)
            computed += lasts if done >= warm else 0.0
            heapq.heappush(events, (now + stage.trip(worker) + lasts, worker, "push"))
        elif act == "push":
            heapq.heappush(events, (stage.move(worker, now, into=True), worker, "apply"))
        elif act == "apply":
            done += 1
            if done == warm:
                start = now
            elif done > warm:
                counted, stale = counted + 1, stale + done - 1 - pulled_at[worker]
            end = now
            heapq.heappush(events, (now + 2 * stage.trip(worker), worker, "pull"))
        else:
            arrived = stage.move(worker, now, into=False)
            pulled_at[worker] = done
            cycled += arrived - began[worker]
            heapq.heappush(events, (arrived, worker, "take"))
    rate = counted / max(end - start, 1e-12)
    return Played(rate, workers / rate, min(workers / rate, computed / max(1, counted)), stale / max(1, counted))


class _Stage:
    """Ports and servers between workers and their weights."""

    def __init__(self, workers: int, calibration: Calibration, network: Network) -> None:
        hosts = network.hosts(workers)
        self._calibration, self._network = calibration, network
        self._out, self._in = [Queue() for _ in range(hosts)], [Queue() for _ in range(hosts)]
        self._servers = [Queue() for _ in range(network.servers)]
        self._host_of_server = [server % hosts for server in range(network.servers)]
        self._part = calibration.gradient_bytes / network.servers

    def trip(self, worker: int) -> float:
        """A small question to server 0 and its answer."""
        far = worker // self._network.per_host != self._host_of_server[0]
        return self._calibration.call_s + (2 * self._network.latency_s if far else 0.0)

    def move(self, worker: int, now: float, *, into: bool) -> float:
        """When a gradient is with all servers, or the weights are with the worker."""
        host, last = worker // self._network.per_host, now
        for server, queue in enumerate(self._servers):
            there = self._host_of_server[server]
            if there == host:
                last = max(last, queue.use(now, self._part * self._calibration.share_byte_s))
                continue
            source, target = (host, there) if into else (there, host)
            port_s = self._part * self._network.byte_s
            # Both ends of a wire are busy at the same time, and a server works on what has come so far.
            sent = self._out[source].use(now, port_s)
            received = max(sent, self._in[target].use(sent - port_s, port_s)) + self._network.latency_s
            served = self._part * self._calibration.serve_byte_s
            last = max(last, queue.use(received - min(served, port_s), served), received)
        return last
