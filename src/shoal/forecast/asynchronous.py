"""Asynchronous workers, played event by event: each takes a shard, computes, pushes and pulls; ports and servers are
queues. What closed forms miss lies in these queues: who waits depends on who came before."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

from shoal.forecast.calibration import Calibration, Network

_CYCLES = 400
_MOST_USES = 600_000
"""Of ports and servers: seconds."""
_TAILS = 40
"""Moments at which it is looked how long all would take to end what they do."""


@dataclass(frozen=True)
class Played:
    """What came of it."""

    shards_per_s: float
    """Over all workers, meetings included."""
    cycle_s: float
    """Mean time of a worker for a shard, of which it …"""
    compute_s: float
    """… computed so long, and …"""
    waiting_s: float
    """… waited so long, in the mean, for the others to come to a meeting."""
    staleness: float
    """Mean number of others' pushes between a worker's pull and its push."""


class Queue:
    """Something that one can use at a time: half a port, a server. Who comes takes the first gap that is long enough:
    a place that another will need later does not hold him up before."""

    def __init__(self) -> None:
        self._taken: list[tuple[float, float]] = []
        """From when to when, in order."""

    def use(self, ready: float, seconds: float, now: float) -> float:
        """When it is done, for who can begin at `ready`. now: nobody will ask for an earlier time any more."""
        while self._taken and self._taken[0][1] <= now:
            del self._taken[0]
        place, begin = 0, ready
        while place < len(self._taken) and begin + seconds > self._taken[place][0]:
            begin = max(begin, self._taken[place][1])
            place += 1
        self._take(place, begin, begin + seconds)
        return begin + seconds

    def _take(self, place: int, begin: float, end: float) -> None:
        """Times that touch become one."""
        if place < len(self._taken) and self._taken[place][0] == end:
            end = self._taken.pop(place)[1]
        if place and self._taken[place - 1][1] == begin:
            place -= 1
            begin = self._taken.pop(place)[0]
        self._taken.insert(place, (begin, end))


def play(
    shard_images: float, workers: int, calibration: Calibration, network: Network, *, seed: int = 0,
    between: float = math.inf,
) -> Played:  # fmt: skip
    """Lets so many workers train until each has done some 400 shards (fewer where workers are many).

    between: shards of all from one meeting of the workers to the next.
    """
    cycles = max(6, min(_CYCLES, _MOST_USES // (6 * network.servers * workers)))
    draw = random.Random(seed)
    stage = _Stage(workers, calibration, network)
    compute = calibration.shard(shard_images)  # the update is the server's
    sigma = math.sqrt(math.log1p(calibration.jitter**2))  # a lognormal time of mean 1

    def mean(worker: int) -> float:
        return compute * (network.slow if worker == workers - 1 else 1.0)

    # Each entry: when, worker, what it does then.
    events = [(draw.random() * compute, worker, "take") for worker in range(workers)]
    heapq.heapify(events)
    done, pulled_at = 0, [0] * workers
    warm, limit = workers * 2, workers * (cycles + 2)
    tails = _Tails(workers)
    start = end = 0.0
    counted, computed, stale = 0, 0.0, 0
    while done < limit:
        now, worker, act = heapq.heappop(events)
        if act == "take":
            tails.ended(worker, now)
            if done >= warm + tails.begun * (limit - warm) / _TAILS:
                tails.begin(worker, now)
            lasts = mean(worker) * draw.lognormvariate(-sigma * sigma / 2, sigma)
            heapq.heappush(events, (now + stage.trip(worker) + lasts, worker, "push"))
        elif act == "push":
            heapq.heappush(events, (stage.move(worker, now, into=True), worker, "apply"))
        elif act == "apply":
            done += 1
            if done == warm:
                start = now
            elif done > warm:
                counted, stale = counted + 1, stale + done - 1 - pulled_at[worker]
                computed += mean(worker)
            end = now
            heapq.heappush(events, (now + 2 * stage.trip(worker), worker, "pull"))
        else:
            arrived = stage.move(worker, now, into=False)
            pulled_at[worker] = done
            heapq.heappush(events, (arrived, worker, "take"))
    rate = counted / max(end - start, 1e-12)
    cycle, waiting = workers / rate, workers * tails.lost_s(rate) / between
    whole = cycle + waiting
    return Played(workers / whole, whole, min(cycle, computed / max(1, counted)), waiting, stale / max(1, counted))


class _Tails:
    """How long it takes until all have done what they are at, from moments at which one of them has."""

    def __init__(self, workers: int) -> None:
        self._workers, self.begun = workers, 0
        self._open: list[tuple[float, set[int]]] = []
        self._lasted: list[float] = []

    def begin(self, worker: int, now: float) -> None:
        self.begun += 1
        self._open.append((now, set(range(self._workers)) - {worker}))

    def ended(self, worker: int, now: float) -> None:
        """A worker has done a shard."""
        for began, left in self._open:
            left.discard(worker)
            if not left:
                self._lasted.append(now - began)
        self._open = [(began, left) for began, left in self._open if left]

    def lost_s(self, rate: float) -> float:
        """Of a meeting: beyond the time that so many shards would have taken in any case."""
        if not self._lasted:
            return 0.0
        return max(0.0, sum(self._lasted) / len(self._lasted) - (self._workers - 1) / rate)


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
                last = max(last, queue.use(now, self._part * self._calibration.share_byte_s, now))
                continue
            source, target = (host, there) if into else (there, host)
            port_s = self._part * self._network.byte_s
            # Both ends of a wire are busy at the same time, and a server works on what has come so far.
            sent = self._out[source].use(now, port_s, now)
            received = max(sent, self._in[target].use(sent - port_s, port_s, now)) + self._network.latency_s
            served = self._part * self._calibration.serve_byte_s
            last = max(last, queue.use(received - min(served, port_s), served, now), received)
        return last
