"""Parameter servers, synchronous, in closed form: all push, the servers step, all pull."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.forecast import allreduce, overlap
from shoal.forecast.calibration import Calibration, Network
from shoal.forecast.overlap import Sent

PIECE = 4.0
"""MiB of a gradient that are pushed as soon as they are known."""


@dataclass(frozen=True)
class Ports:
    """What one direction (a push; a pull is its mirror) moves for one byte of the model, at the busiest place.

    Workers fill host after host, servers go round the hosts, and each holds an equal part.
    """

    wire: float
    """Through one host's port."""
    served: float
    """Through one server, for workers of other hosts."""
    shared: float
    """Through one server, for those of its own host."""

    @staticmethod
    def of(workers: int, network: Network) -> Ports:
        hosts, servers = network.hosts(workers), network.servers
        there = [min(network.per_host, workers - host * network.per_host) for host in range(hosts)]
        held = [len(range(host, servers, hosts)) for host in range(hosts)]
        into = max((workers - there[host]) * held[host] / servers for host in range(hosts))
        out = max(there[host] * (servers - held[host]) / servers for host in range(hosts))
        far = max((workers - there[host]) / servers for host in range(hosts) if held[host])
        near = max(there[host] / servers for host in range(hosts) if held[host])
        return Ports(max(into, out), far, near)


def round_trips(servers: int) -> int:
    """A step's questions that wait for an answer: the small sums, the commit (in two parts with several), the pull."""
    return 3 if servers == 1 else 4


def sync_s(
    workers: int, calibration: Calibration, network: Network, *, shard_s: float = 0.0, sums: int | None = None
) -> float:
    """Seconds that a round adds to the passes of a worker's last shard, until the new weights are everywhere.

    shard_s: of these passes, during which pieces of the gradient leave. sums: that many of a worker's partial sums are
    pushed in its place, whole, when all is computed.
    """
    ports = Ports.of(workers, network)
    served = ports.served * calibration.serve_byte_s + ports.shared * calibration.share_byte_s
    byte_s = max(ports.wire * network.byte_s, served)
    far = network.hosts(workers) > 1
    trip = calibration.call_s + (2 * network.latency_s if far else 0.0)
    side = calibration.side_bytes * (max(network.byte_s, calibration.serve_byte_s) if far else calibration.share_byte_s)
    size = calibration.gradient_bytes
    if sums is None:
        pieces = allreduce.buckets(calibration.gradients, PIECE) or [(size, 1.0)]
        pushed = overlap.exposed_s([Sent(ready, nbytes * byte_s) for nbytes, ready in pieces], shard_s)
    else:
        pushed = sums * size * byte_s
    return round_trips(network.servers) * trip + pushed + size * byte_s + 2 * workers * side
