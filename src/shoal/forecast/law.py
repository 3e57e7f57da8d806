"""Law: measured step times at several sizes, as a law with few terms that can be carried on to larger sizes.

T(n) = c0 + c1 2(n-1)/n + c2 (m-1)/m for n workers on m hosts: computing (c0 / n where all share one batch), an exchange
whose cost per byte does not grow with n, and what going beyond one host adds. More terms fit the known sizes better and
foretell the others worse.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.base.errors import UsageError

AT_LEAST = 0.05
WIDENS = 0.02
"""Half-width of the 80 % interval at the largest size measured, and how much each doubling beyond adds."""
WEAK = 2.0
"""So many times wider where less than EFFICIENT of the largest size's speed is left: there the small terms decide."""
EFFICIENT = 0.8


@dataclass(frozen=True)
class Law:
    """Seconds of a step, for whatever unit of work the rates were given in."""

    terms: tuple[float, float, float]
    per_host: int
    weak: bool
    """Each worker's part stays as it is when there are more; else they share one."""
    largest: int
    """Workers of the largest size it was fitted to."""
    residual: float
    """Largest relative error at a size that it was fitted to."""
    one: float
    """Rate of one worker: what efficiencies are measured against."""

    def seconds(self, workers: int) -> float:
        return float(np.dot(self.terms, _shape(workers, self.per_host, self.weak)))

    def rate(self, workers: int) -> float:
        """Of all workers together."""
        return (workers if self.weak else 1) / self.seconds(workers)

    def efficiency(self, workers: int) -> float:
        return self.rate(workers) / (workers * self.one)

    def interval(self, workers: int) -> tuple[float, float]:
        """80 % interval of the rate."""
        beyond = max(0.0, math.log2(workers / self.largest))
        wide = AT_LEAST + WIDENS * beyond
        if beyond and self.efficiency(self.largest) < EFFICIENT:
            wide *= WEAK
        half = math.hypot(wide, self.residual)
        return self.rate(workers) * math.exp(-half), self.rate(workers) * math.exp(half)


def fit(rates: Sequence[tuple[int, float]], per_host: int, *, weak: bool = True) -> Law:
    """rates: (workers, rate of all together) at two sizes or more. Least squares of seconds, so that large, slow sizes
    count for more; no term is negative, and no more terms are used than sizes are there."""
    sizes = sorted({workers for workers, _ in rates})
    if len(sizes) < 2:
        raise UsageError("a law needs rates at two numbers of workers or more")
    seconds = np.array([(workers if weak else 1) / rate for workers, rate in rates])
    shapes = np.array([_shape(workers, per_host, weak) for workers, _ in rates])
    best: tuple[float, np.ndarray] | None = None
    for count in range(1, min(3, len(sizes)) + 1):
        for chosen in itertools.combinations(range(3), count):
            found, *_ = np.linalg.lstsq(shapes[:, chosen], seconds, rcond=None)
            if (found < 0).any():
                continue
            terms = np.zeros(3)
            terms[list(chosen)] = found
            error = float(((shapes @ terms - seconds) ** 2).sum())
            if best is None or error < best[0] * (1 - 1e-9):
                best = error, terms
    assert best is not None, "one term alone is never negative"
    residual = float(np.abs(shapes @ best[1] / seconds - 1).max())
    first = min(sizes)
    one = float(np.mean([rate / workers for workers, rate in rates if workers == first]))
    c0, c1, c2 = best[1].tolist()
    return Law((c0, c1, c2), per_host, weak, max(sizes), residual, one)


def _shape(workers: int, per_host: int, weak: bool) -> tuple[float, float, float]:
    hosts = -(-workers // per_host)
    return 1.0 if weak else 1 / workers, 2 * (workers - 1) / workers, (hosts - 1) / hosts
