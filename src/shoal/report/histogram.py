"""Histogram: how often which values came, in buckets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Histogram(NamedTuple):
    """With what cannot be had from the buckets again."""

    least: float
    most: float
    count: int
    total: float
    squares: float
    """Sum of the squares."""
    limits: Sequence[float]
    """Upper end of each bucket, rising; a bucket begins where the one before it ends."""
    buckets: Sequence[float]

    @staticmethod
    def of_counts(counts: Sequence[int]) -> Histogram:
        """counts: how often 0, 1, 2 … came. A bucket ends half-way between two numbers."""
        values = [value for value, count in enumerate(counts) if count]
        return Histogram(
            least=float(min(values, default=0)),
            most=float(max(values, default=0)),
            count=sum(counts),
            total=float(sum(value * count for value, count in enumerate(counts))),
            squares=float(sum(value * value * count for value, count in enumerate(counts))),
            limits=[value + 0.5 for value in range(-1, len(counts))],
            buckets=[0.0, *map(float, counts)],
        )
