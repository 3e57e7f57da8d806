"""Balance: where to cut a row of pieces into stages, so that the slowest is as fast as can be. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def balanced(pieces: Sequence[float], stages: int, weighty: Sequence[bool]) -> list[int] | None:
    """Numbers of the pieces behind which to cut; None where there are not enough.

    pieces: seconds of each. weighty: which of them have weights; each stage needs some.
    """
    best: dict[tuple[int, int], tuple[float, list[int]]] = {(0, 0): (0.0, [])}
    for count in range(1, stages + 1):
        for high in range(1, len(pieces) + 1):
            for low in range(high):
                if (count - 1, low) in best and any(weighty[low:high]):
                    slowest, cuts = best[count - 1, low]
                    found = max(slowest, sum(pieces[low:high]))
                    if (count, high) not in best or found < best[count, high][0]:
                        best[count, high] = found, [*cuts, low - 1] if low else cuts
    held = best.get((stages, len(pieces)))
    return None if held is None else held[1]


def sums(pieces: Sequence[float], cuts: Sequence[int]) -> list[float]:
    """Seconds of the stages."""
    bounds = [0, *(number + 1 for number in cuts), len(pieces)]
    return [sum(pieces[low:high]) for low, high in pairwise(bounds)]
