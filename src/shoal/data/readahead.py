"""Readahead: records that are trained on in blocks, each fetched from the disk in one go."""

from __future__ import annotations

from collections.abc import Callable

from shoal.data.image import Bytes
from shoal.data.recordio import Records
from shoal.data.shuffle import Shuffle


def reader(records: Records, shuffle: Shuffle) -> Callable[[int], Bytes]:
    """What reads the images that come in the order of `shuffle`."""
    return Readahead(records, shuffle).image if shuffle.block else records.image


class Readahead:
    """Reads as `Records` does. The first image of a block has the system fetch the whole block meanwhile."""

    def __init__(self, records: Records, shuffle: Shuffle) -> None:
        self._records, self._block, self._most = records, shuffle.block or 1, 2 * shuffle.blocks
        self._fetched: dict[int, None] = {}  # of late; older ones may have left the page cache

    def image(self, number: int) -> Bytes:
        block = number // self._block
        if block not in self._fetched:
            self._fetched[block] = None
            for old in list(self._fetched)[: -self._most]:
                self._fetched.pop(old, None)
            self._records.fetch(block * self._block, (block + 1) * self._block)
        return self._records.image(number)
