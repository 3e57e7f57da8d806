"""Who is slow does not hold the last shards of a stretch while all the others wait for him."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.train.stretches import Stretches


class Slow:
    """A worker during whose shards the others take `others` each time. What it takes, computes and is asked for."""

    def __init__(self, limit: int, others: int) -> None:
        self.next, self.limit, self.others = 0, limit, others
        self.held = self.done = self.held_at_the_end = 0

    def take(self, limit: int) -> int | None:
        if self.next >= min(limit, self.limit):
            return None
        self.held += 1
        self.next += 1
        return self.next - 1

    def compute(self) -> None:
        """Others are at work meanwhile."""
        was, self.next = self.next, min(self.limit, self.next + self.others)
        if self.next == self.limit > was:
            self.held_at_the_end = self.held
        self.held -= 1
        self.done += 1

    def works(self) -> int:
        stretches: Any = object.__new__(Stretches)
        stretches._rig = SimpleNamespace(take=self.take, pass_over=self.compute)
        stretches._gang = SimpleNamespace(watch=SimpleNamespace(to=lambda part: None))
        stretches._trainer = SimpleNamespace(batches=SimpleNamespace(shard=lambda step, shard: None, waited_s=0.0))
        stretches._shards, stretches._taken = 4, 0
        with ThreadPoolExecutor(1) as stretches._ahead:
            return stretches._work(self.limit, None)


@pytest.mark.parametrize("others", [1, 3, 10])
@pytest.mark.parametrize("limit", [1, 2, 40, 41, 47])
def test_when_none_is_left_it_has_one_at_most(limit: int, others: int) -> None:
    worker = Slow(limit, others)
    assert worker.works() == worker.done
    assert worker.held == 0 and worker.next == limit
    assert worker.held_at_the_end <= 1 or limit <= 2, "before it has done one it does not know how slow it is"


def test_alone_it_does_all() -> None:
    worker = Slow(40, 0)
    assert worker.works() == 40
