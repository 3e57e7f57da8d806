"""The tree of additions is a function of the shards alone: not of who adds, nor of the order in which leaves come."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.base.tree import Node, TreeSum, children, cover


def add(left: Any, right: Any) -> Any:
    """An addition that forgets nothing: neither order nor brackets."""
    return (left, right)


def by_definition(node: Node, filled: int) -> Any:
    low, high = node
    if low >= filled:
        return None
    if high - low == 1:
        return f"shard {low}"
    left, right = (by_definition(child, filled) for child in children(node))
    return left if right is None else add(left, right)


def leaf(shard: int, filled: int) -> str | None:
    return f"shard {shard}" if shard < filled else None


@st.composite
def partitions(draw: st.DrawFn) -> tuple[int, int, list[range]]:
    """(shards, those with images, contiguous ranges of shards by worker; some workers may have none)."""
    shards = draw(st.integers(1, 40))
    cuts = sorted(draw(st.lists(st.integers(0, shards), max_size=7)))
    edges = [0, *cuts, shards]
    ranges = [range(low, high) for low, high in pairwise(edges)]
    return shards, draw(st.integers(1, shards)), ranges


@given(partitions(), st.data())
def test_any_workers_make_the_same_additions(case: tuple[int, int, list[range]], data: st.DataObject):
    shards, filled, ranges = case
    nodes: list[tuple[Node, Any]] = []
    for mine in ranges:
        tree = TreeSum(shards, add)
        for shard in data.draw(st.permutations(mine)):
            tree.put((shard, shard + 1), leaf(shard, filled))
        own = cover(shards, mine.start, mine.stop)
        assert sorted(tree.partial) == own  # what it sums on its own is just what it covers
        nodes += [(node, tree.partial[node]) for node in own]
    whole = TreeSum(shards, add)
    for node, value in data.draw(st.permutations(nodes)):
        whole.put(node, value)
    assert whole.take() == by_definition((0, shards), filled)
    assert not whole.partial  # ready for the next step


@given(st.integers(1, 200))
def test_leaves_in_order_leave_few_partial_sums(shards: int):
    tree = TreeSum(shards, add)
    for shard in range(shards):
        tree.put((shard, shard + 1), "leaf")
        assert len(tree.partial) <= shards.bit_length()


@given(st.integers(1, 40), st.data())
def test_a_cover_is_ordered_exact_and_the_fewest(shards: int, data: st.DataObject):
    first = data.draw(st.integers(0, shards))
    last = data.draw(st.integers(first, shards))
    found = cover(shards, first, last)
    assert [shard for low, high in found for shard in range(low, high)] == list(range(first, last))

    def fewest(node: Node) -> int:
        """Nodes below `node` that hold exactly its shards in [first, last)."""
        low, high = node
        if last <= low or high <= first:
            return 0
        return 1 if first <= low and high <= last else sum(map(fewest, children(node)))

    assert len(found) == fewest((0, shards))
    assert all(node in nodes_of((0, shards)) for node in found)


def nodes_of(node: Node) -> set[Node]:
    below = children(node) if node[1] - node[0] > 1 else ()
    return {node}.union(*map(nodes_of, below))


@given(st.integers(0, 1000), st.integers(2, 1000))
def test_children_halve_at_a_power_of_two(low: int, size: int):
    (a, middle), (same, b) = children((low, low + size))
    assert (a, middle, b) == (low, same, low + size)
    half = middle - low
    assert half & (half - 1) == 0 and half < size <= 2 * half
