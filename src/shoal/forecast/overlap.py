"""Overlap: what leaves while a worker still computes, and how much of it the passes hide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Sent(NamedTuple):
    """Something that all workers exchange during the passes of a shard."""

    ready: float
    """Share of the passes after which it may leave."""
    lasts: float
    """Seconds on its way, once what was sent before is through."""
    core: float = 0.0
    """Seconds in which it keeps the core busy that computes."""


def exposed_s(sent: Sequence[Sent], shard_s: float) -> float:
    """Seconds that it adds to passes of shard_s, until the last is there. One after another over the same port."""

    def through(ends: float) -> tuple[float, float]:
        """When the last is there, and core time of what went before the passes' end, if that is when they end."""
        free = busy = 0.0
        for one in sent:
            begins = max(free, one.ready * ends)
            free = begins + one.lasts
            busy += one.core * min(1.0, max(0.0, ends - begins) / one.lasts) if one.lasts else 0.0
        return free, busy

    ends = shard_s + through(shard_s)[1]
    free, _ = through(ends)
    return max(free, ends) - shard_s
