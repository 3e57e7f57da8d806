"""Stragglers: workers that do the same take different times, and whoever needs all of them waits for the slowest."""

from __future__ import annotations

import math
from functools import cache


@cache
def largest_of(workers: int) -> float:
    """Mean of the largest of so many standard normal numbers: 0 for one, 0.56 for two, 3.2 for 1000.

    The integral of x d(Phi(x)^n), by trapezoids that are exact to some six digits.
    """
    if workers == 1:
        return 0.0
    low, high, count = -9.0, 9.0, 3600
    width = (high - low) / count
    total = 0.0
    for number in range(count + 1):
        x = low + number * width
        below = 0.5 * math.erfc(-x / math.sqrt(2))
        density = workers * below ** (workers - 1) * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        total += x * density * (0.5 if number in (0, count) else 1.0)
    return total * width


def waiting_s(
    work_s: float, jitter: float, workers: int, *, times: int = 1, uneven: float = 0.0, slow: float = 1.0
) -> float:
    """Seconds a step that all wait for the slowest, beyond `work_s`, the mean of each.

    jitter: standard deviation / mean of one shard's work. times: shards of a worker from one meeting to the next, over
    which it evens out. uneven: part of the mean by which the slowest is always behind. slow: one worker needs so many
    times longer.
    """
    if workers == 1:
        return 0.0
    spread = work_s * (jitter / math.sqrt(times) * largest_of(workers) + uneven)
    return max(spread, (slow - 1.0) * work_s)
