"""All-reduce in closed form, and how much of it the backward pass hides.

Thakur, Rabenseifner, Gropp 2005: with n workers, a seconds a message and b seconds a byte, S bytes take at least
2(n-1)/n S b whatever the algorithm; a ring adds 2(n-1) a, trees 2 log2(n) a.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from shoal.forecast.calibration import Calibration, Network

Algorithm = Literal["ring", "tree"]
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes after which DistributedDataParallel sends its first bucket and each later one, where nothing else is said."""


def hops(workers: int, algorithm: Algorithm) -> int:
    """Messages that follow one another."""
    return 2 * (workers - 1) if algorithm == "ring" else 2 * math.ceil(math.log2(workers))


def all_reduce_s(
    nbytes: float, workers: int, calibration: Calibration, network: Network, algorithm: Algorithm = "ring"
) -> float:
    """Seconds to add `nbytes` over all workers. Those of a host are neighbours, so its port carries the sum once. Every
    turn of a ring waits for a message between hosts; a tree first adds what is on a host."""
    if workers == 1 or not nbytes:
        return 0.0
    hosts = network.hosts(workers)
    far = hops(workers if algorithm == "ring" else hosts, algorithm)
    latency = hops(workers, algorithm) * calibration.hop_s + (far * network.latency_s if hosts > 1 else 0.0)
    byte_s = max(network.byte_s if hosts > 1 else 0.0, calibration.sum_byte_s)
    return latency + 2 * (workers - 1) / workers * nbytes * byte_s


def scattered_s(nbytes: float, blocks: int, workers: int, calibration: Calibration, network: Network) -> float:
    """Seconds of what a pass under fsdp exchanges: `nbytes` of parameters gathered for the forward pass and again for
    the backward pass, and gradients added and dealt out. Each is half a ring's all-reduce, in so many blocks."""
    return 1.5 * blocks * all_reduce_s(nbytes / blocks, workers, calibration, network)


def gather_s(nbytes: float, workers: int, calibration: Calibration, network: Network) -> float:
    """Seconds until every worker has `nbytes` of each other one (deterministic training)."""
    if workers == 1:
        return 0.0
    far = network.hosts(workers) > 1
    byte_s = max(network.byte_s if far else 0.0, calibration.sum_byte_s)
    return (workers - 1) * (calibration.hop_s + (network.latency_s if far else 0.0) + nbytes * byte_s)


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
    sent: Sequence[tuple[int, float]], shard_s: float, workers: int, calibration: Calibration, network: Network,
    algorithm: Algorithm = "ring",
) -> float:  # fmt: skip
    """Seconds that the exchange of the last shard's gradients adds to its passes, until the last bucket is summed.

    sent: (bytes, when known as a share of shard_s), one after another over the same port.
    """
    each = [all_reduce_s(nbytes, workers, calibration, network, algorithm) for nbytes, _ in sent]

    def through(ends: float) -> tuple[float, float]:
        """When the last bucket is summed, and bytes that were before the passes' end, if that is when they end."""
        free = hidden = 0.0
        for (nbytes, ready), lasts in zip(sent, each, strict=True):
            begins = max(free, ready * ends)
            free = begins + lasts
            hidden += nbytes * min(1.0, max(0.0, ends - begins) / lasts) if lasts else 0.0
        return free, hidden

    ends = shard_s
    if calibration.device == "cpu":
        # Cores that move bytes do not compute meanwhile: the passes last longer.
        _, hidden = through(shard_s)
        ends += 2 * (workers - 1) / workers * hidden * calibration.sum_byte_s
    free, _ = through(ends)
    return max(free, ends) - shard_s
