"""All-reduce in closed form, and of the sums of a backward pass.

Thakur, Rabenseifner, Gropp 2005: with n workers, a seconds a message and b seconds a byte, S bytes take at least
2(n-1)/n S b whatever the algorithm; a ring adds 2(n-1) a, trees 2 log2(n) a.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from shoal.forecast import overlap
from shoal.forecast.calibration import Calibration, Network
from shoal.forecast.overlap import Sent

Algorithm = Literal["ring", "tree"]
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes after which DistributedDataParallel sends its first bucket and each later one, where nothing else is said."""


def hops(workers: int, algorithm: Algorithm) -> int:
    """Messages that follow one another."""
    return 2 * (workers - 1) if algorithm == "ring" else 2 * math.ceil(math.log2(workers))


def flights(calibration: Calibration) -> int:
    """Times that a message is on its way, one after the other: gloo sends when the other end has said that it is ready,
    nccl and one that nobody measured at once."""
    return 2 if calibration.device == "cpu" else 1


def all_reduce_s(
    nbytes: float, workers: int, calibration: Calibration, network: Network, algorithm: Algorithm = "ring"
) -> float:
    """Seconds to add `nbytes` over all workers. Those of a host are neighbours, so its port carries the sum once. Every
    turn of a ring waits for a message between hosts; a tree first adds what is on a host."""
    if workers == 1 or not nbytes:
        return 0.0
    hosts = network.hosts(workers)
    far = hops(workers if algorithm == "ring" else hosts, algorithm)
    latency = hops(workers, algorithm) * calibration.hop_s
    if hosts > 1:
        latency += far * flights(calibration) * network.latency_s
    byte_s = max(network.byte_s if hosts > 1 else 0.0, calibration.sum_byte_s)
    return latency + 2 * (workers - 1) / workers * nbytes * byte_s


def scattered_s(nbytes: float, blocks: int, workers: int, calibration: Calibration, network: Network) -> float:
    """Seconds of what a pass under fsdp exchanges: `nbytes` of parameters gathered for the forward pass and again for
    the backward pass, and gradients added and dealt out. Each is half a ring's all-reduce, in so many blocks."""
    return 1.5 * blocks * all_reduce_s(nbytes / blocks, workers, calibration, network)


def core_s(nbytes: float, workers: int, calibration: Calibration) -> float:
    """Seconds in which a worker's core is busy with an all-reduce, whatever else it is to do."""
    if workers == 1 or not nbytes:
        return 0.0
    moved = 2 * (workers - 1) / workers * nbytes
    return hops(workers, "ring") * calibration.core_hop_s + moved * calibration.core_byte_s


def gather_s(nbytes: float, workers: int, calibration: Calibration, network: Network, pieces: int = 1) -> float:
    """Seconds until every worker has `nbytes` of each other one, in so many pieces."""
    if workers == 1:
        return 0.0
    far = network.hosts(workers) > 1
    byte_s = max(network.byte_s if far else 0.0, calibration.sum_byte_s)
    message = calibration.hop_s + (flights(calibration) * network.latency_s if far else 0.0)
    return (workers - 1) * (pieces * message + nbytes * byte_s)


def buckets(gradients: Sequence[tuple[int, float]], mebibytes: float | None = None) -> list[tuple[int, float]]:
    """Gradients put together as DistributedDataParallel does: a small first bucket, then large ones; or all of so many
    mebibytes."""
    made: list[tuple[int, float]] = []
    cap = BUCKET if mebibytes is None else mebibytes * 2**20
    size, limit = 0, FIRST_BUCKET if mebibytes is None else cap
    when = 0.0
    for nbytes, ready in gradients:
        size, when = size + nbytes, max(when, ready)
        if size >= limit:
            made.append((size, when))
            size, limit = 0, cap
    return [*made, (size, when)] if size else made


def exposed_s(
    gradients: Sequence[tuple[float, float]], shard_s: float, workers: int, calibration: Calibration, network: Network,
    algorithm: Algorithm = "ring",
) -> float:  # fmt: skip
    """Seconds that the sums of the last shard add to its passes, until the last one is there.

    gradients: (bytes, when known as a share of shard_s), one after another. On CPUs the core that moves bytes does not
    compute meanwhile.
    """
    shared = calibration.device == "cpu"
    sent = [
        Sent(
            ready,
            all_reduce_s(nbytes, workers, calibration, network, algorithm),
            core_s(nbytes, workers, calibration) if shared else 0.0,
        )
        for nbytes, ready in gradients
    ]
    return overlap.exposed_s(sent, shard_s)
