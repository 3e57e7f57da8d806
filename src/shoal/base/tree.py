"""One fixed binary tree of additions over the shards of a batch, whoever computes them.

Floating-point addition depends on its order; with the order fixed by the shards alone, any number of workers gives the
same bits. A node is the range [low, high) of shards that it sums; it splits at the largest power of two below its size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Node = tuple[int, int]
T = TypeVar("T")


def children(node: Node) -> tuple[Node, Node]:
    """The two halves of a node of at least two shards."""
    low, high = node
    middle = low + (1 << ((high - low - 1).bit_length() - 1))
    return (low, middle), (middle, high)


def cover(shards: int, first: int, last: int, node: Node | None = None) -> list[Node]:
    """The fewest nodes that together hold exactly shards [first, last): what a worker can sum on its own."""
    low, high = node = node or (0, shards)
    if first >= last or high <= first or last <= low:
        return []
    if first <= low and high <= last:
        return [node]
    left, right = children(node)
    return cover(shards, first, last, left) + cover(shards, first, last, right)


class TreeSum(Generic[T]):
    """Sums leaves in tree order as they come; holds at most log2 of the shards unfinished partial sums."""

    def __init__(self, shards: int, add: Callable[[T, T], T]) -> None:
        """add: (left, right) -> their sum; may reuse left."""
        self.root: Node = (0, shards)
        self._add = add
        self._above: dict[Node, tuple[Node, Node, Node]] = {}
        self._map(self.root)
        self.partial: dict[Node, T | None] = {}

    def _map(self, node: Node) -> None:
        if node[1] - node[0] > 1:
            left, right = children(node)
            for child in (left, right):
                self._above[child] = (node, left, right)
                self._map(child)

    def put(self, node: Node, value: T | None) -> None:
        """Adds a finished node; None stands for shards without images. Nodes whose halves are both there are summed."""
        self.partial[node] = value
        while node in self._above:
            parent, left, right = self._above[node]
            if left not in self.partial or right not in self.partial:
                return
            a, b = self.partial.pop(left), self.partial.pop(right)
            self.partial[parent] = b if a is None else a if b is None else self._add(a, b)
            node = parent

    def take(self) -> T | None:
        """The sum of all leaves; the tree is empty afterwards."""
        total = self.partial.pop(self.root)
        self.partial.clear()
        return total
