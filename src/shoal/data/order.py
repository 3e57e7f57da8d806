"""Who takes which sample when: the order of an epoch, the shards of a batch, the chunks of a validation.

All of it is a function of the recipe's seed and of counts, never of workers, threads or a resume.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from shoal.data.shuffle import Shuffle

_SAMPLES, _BLOCKS = 0, 13
"""Streams of random numbers; the others are augmentation's (data/augment/draws.py)."""
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix(value: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): uint64 [n] in, well-mixed uint64 [n] out."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def key(*parts: int) -> int:
    """One 64-bit key from several numbers (seed, epoch, stream …); different numbers or order, different key."""
    state = 0
    for part in parts:
        # `mix` on one number, without numpy's cost per call: this runs for every shard of every step.
        state = (state + (part + 1) * _GOLDEN) & _MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def keyed(stream: int, indices: np.ndarray) -> np.ndarray:
    """A random uint64 for each index, of (stream, index) alone: splitmix64 with `stream` as state, at place `index`.

    Own, because it must give the same numbers in every numpy, for any subset of indices, in any order.
    """
    steps = (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    return mix(steps + np.uint64(stream))


def uniform(stream: int, indices: np.ndarray) -> np.ndarray:
    """As `keyed`, as float64 in [0, 1)."""
    return (keyed(stream, indices) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def order(count: int, seed: int, epoch: int, shuffle: Shuffle | None = None) -> np.ndarray:
    """The order of samples in an epoch: a permutation of range(count), int64, of (seed, epoch) and `shuffle` alone."""
    samples = np.arange(count)
    drawn = keyed(key(seed, epoch, _SAMPLES), samples)
    if shuffle is None or shuffle.block is None:
        return np.argsort(drawn, kind="stable")
    blocks = np.argsort(keyed(key(seed, epoch, _BLOCKS), np.arange(-(-count // shuffle.block))), kind="stable")
    window_of = np.empty(len(blocks), np.int64)
    window_of[blocks] = np.arange(len(blocks)) // shuffle.blocks
    return np.lexsort((drawn, window_of[samples // shuffle.block]))


def shard_bounds(count: int, shards: int) -> list[tuple[int, int]]:
    """[low, high) of each contiguous shard of a batch of `count` images; sizes differ by at most one, larger first."""
    size, extra = divmod(count, shards)
    bounds, low = [], 0
    for shard in range(shards):
        high = low + size + (shard < extra)
        bounds.append((low, high))
        low = high
    return bounds


def share(pieces: int, replica: int, num_replicas: int) -> range:
    """The whole, contiguous pieces (shards or chunks) that a replica takes."""
    return range(replica * pieces // num_replicas, (replica + 1) * pieces // num_replicas)


def chunk_bounds(count: int, chunk: int) -> list[tuple[int, int]]:
    """[low, high) of each validation chunk of `chunk` images; the last may be shorter."""
    return [(low, min(low + chunk, count)) for low in range(0, count, chunk)]
