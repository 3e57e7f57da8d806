"""Batches: the recipe's global batches, cut to this replica's shards, prepared ahead of the step that needs them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from shoal.base.duration import Span
from shoal.data.augment import Augment
from shoal.data.decode import Pictures
from shoal.data.order import chunk_bounds, order, shard_bounds, share
from shoal.data.shuffle import Shuffle
from shoal.data.source import Encoded, Pixels
from shoal.data.upload import Send, Sent, Tensors


@dataclass(frozen=True)
class Batch:
    """Images to compute together: one shard of a global batch, or several under `norm: sync`, or a validation chunk."""

    images: torch.Tensor
    """uint8 [B, C, H, W]."""
    labels: torch.Tensor
    """int64 [B]; NO_LABEL (-1) where there is none, NO_IMAGE (-2) where the image was skipped, too."""
    indices: torch.Tensor
    """int64 [B], of the samples in their source; always in the host's memory."""
    count_global: int
    """Images in the whole global batch of this step, over all workers."""
    step: int = 0
    """0-based optimizer step the batch belongs to."""
    shards: tuple[tuple[int, int], ...] = ((0, 0),)
    """(shard, images of it) in the order of the images; none for a worker that is there for the collectives alone."""
    num_shards: int = 1
    """Shards of the global batch that hold images, over all workers."""
    all_busy: bool = True
    """Whether every worker has a Batch in this step; a short last batch may leave some without."""
    sent: Sent | None = None
    """Of tensors that are on their way to a device."""

    @property
    def first_shard(self) -> int:
        """Number of the first shard here, which speaks for all of them; -1 where there is none."""
        return self.shards[0][0] if self.shards else -1

    def arrive(self) -> None:
        """What was sent ahead may be used from here on."""
        if self.sent is not None:
            self.sent.arrive()

    def to(self, device: torch.device) -> Batch:
        """The same on `device`, where it may be used now; pinned memory is copied without waiting."""
        self.arrive()
        if self.images.device == device:
            return self
        images, labels = (tensor.to(device, non_blocking=True) for tensor in (self.images, self.labels))
        return replace(self, images=images, labels=labels, sent=None)


@dataclass(frozen=True)
class Cut:
    """How global batches are cut: a function of the recipe, and of this replica's place only in what it takes."""

    span: Span
    shards: int
    seed: int
    replica: int = 0
    num_replicas: int = 1
    merged: bool = False
    """All shards of the replica as one Batch, as `norm: sync` needs; an empty one where it has no images, because the
    other workers wait for its part in the statistics."""
    shuffle: Shuffle | None = None

    def samples(self, step: int) -> tuple[int, int, int]:
        """(epoch, low, high): the global batch of `step` is order(epoch)[low:high]."""
        epoch, position = divmod(step, self.span.steps_per_epoch)
        low = position * self.span.batch
        return epoch, low, min(low + self.span.batch, self.span.images_per_epoch)

    def count(self, step: int) -> int:
        _, low, high = self.samples(step)
        return high - low


class _Take(NamedTuple):
    """What a replica takes of a global batch: images [start, stop), in pieces of [low, high) with their shards."""

    start: int
    stop: int
    pieces: tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]
    all_busy: bool


_BLOCK_BYTES = 1 << 19


class Batches:
    """Iterates over steps from any one on: each item is the list of Batches this replica computes in that step.

    A thread prepares `ahead` blocks of steps in advance, with the help of `decoders` others where images are decoded or
    resized one by one, and uploads them. `waited_s` is the time the caller stood still for data, `made_s` the time it
    took to make it.
    """

    def __init__(
        self,
        data: Pixels | Encoded,
        augment: Augment,
        cut: Cut,
        *,
        ahead: int = 2,
        thread: bool = True,
        decoders: int = 1,
        upload: Send | None = None,
    ) -> None:
        self._data, self._augment, self._cut, self._upload = data, augment, cut, upload
        self._pictures = Pictures(data, augment, decoders)
        self._ahead, self._thread = ahead, thread
        self._epoch, self._order = -1, np.empty(0, np.int64)
        self._takes: dict[tuple[int, int, int], _Take] = {}
        self.waited_s = self.made_s = 0.0

    def prepare(self, step: int) -> list[Batch]:
        """The Batches of one step, made here and now."""
        return self._block(step, step + 1, self._cut)[0]

    def shard(self, step: int, shard: int) -> Batch | None:
        """One shard of a step, made here and now, whoever computes the others; None where it holds no images."""
        (batches,) = self._block(step, step + 1, replace(self._cut, replica=shard, num_replicas=self._cut.shards))
        return batches[0] if batches else None

    def _block(self, first: int, last: int, cut: Cut) -> list[list[Batch]]:
        """The Batches of some steps of one epoch, gathered and augmented in one go."""
        began = time.perf_counter()
        epoch, _, _ = cut.samples(first)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, order(len(self._data.labels), cut.seed, epoch, cut.shuffle)
        counts = [cut.count(step) for step in range(first, last)]
        takes = [self._take(count, cut) for count in counts]
        lows = [cut.samples(step)[1] for step in range(first, last)]
        chosen = np.concatenate(
            [self._order[low + take.start : low + take.stop] for low, take in zip(lows, takes, strict=True)]
        )
        images, labels = self._pictures.train(chosen, seed=cut.seed, epoch=epoch)
        there, sent = _sent(images, labels, self._upload)
        whole = (*there, torch.from_numpy(chosen))
        block, at = [], 0
        for step, count, take in zip(range(first, last), counts, takes, strict=True):
            base = at - take.start
            block.append(
                [
                    Batch(
                        *(tensor[base + low : base + high] for tensor in whole),
                        count_global=count,
                        step=step,
                        shards=shards,
                        num_shards=min(count, cut.shards),
                        all_busy=take.all_busy,
                        sent=sent,
                    )
                    for low, high, shards in take.pieces
                ]
            )
            at += take.stop - take.start
        self.made_s += time.perf_counter() - began
        return block

    def _take(self, count: int, cut: Cut) -> _Take:
        """What a replica takes of a global batch of `count` images; the same for all full batches."""
        key = (count, cut.replica, cut.num_replicas)
        if key not in self._takes:
            bounds = shard_bounds(count, cut.shards)
            mine = [(shard, *bounds[shard]) for shard in share(cut.shards, cut.replica, cut.num_replicas)]
            mine = [(shard, low, high) for shard, low, high in mine if high > low]
            start, stop = (mine[0][1], mine[-1][2]) if mine else (0, 0)
            groups = [mine] if cut.merged else [[piece] for piece in mine]
            pieces = tuple(
                (
                    group[0][1] if group else 0,
                    group[-1][2] if group else 0,
                    tuple((shard, high - low) for shard, low, high in group),
                )
                for group in groups
            )
            shares = [share(cut.shards, replica, cut.num_replicas) for replica in range(cut.num_replicas)]
            filled = min(count, cut.shards)
            busy = cut.merged or all(taken.start < min(taken.stop, filled) for taken in shares)
            self._takes[key] = _Take(start, stop, pieces, busy)
        return self._takes[key]

    def _blocks(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """[low, high) of steps to prepare together: few calls for small images, little memory for large ones."""
        span, channels = self._cut.span, self._data.shape[0]
        height, width = self._augment.seen(*self._data.shape[1:])
        images = span.batch // self._cut.num_replicas + 1
        steps = max(1, _BLOCK_BYTES // (images * channels * height * width))
        while first < last:
            epoch_end = (first // span.steps_per_epoch + 1) * span.steps_per_epoch
            high = min(first + steps, epoch_end, last)
            yield first, high
            first = high

    def steps(self, first: int, last: int) -> Generator[list[Batch], None, None]:
        """The Batches of steps first … last-1."""
        if not self._thread:
            for low, high in self._blocks(first, last):
                began = time.perf_counter()
                block = self._block(low, high, self._cut)
                self.waited_s += time.perf_counter() - began
                yield from block
            return
        ready: queue.Queue = queue.Queue(self._ahead)
        stop = threading.Event()
        worker = threading.Thread(target=self._produce, args=(first, last, ready, stop), name="batches", daemon=True)
        worker.start()
        try:
            for _ in self._blocks(first, last):
                try:
                    block = ready.get_nowait()
                except queue.Empty:
                    began = time.perf_counter()
                    block = ready.get()
                    self.waited_s += time.perf_counter() - began
                if isinstance(block, BaseException):
                    raise block
                yield from block
        finally:
            stop.set()
            while not ready.empty():
                ready.get_nowait()
            worker.join()

    def _produce(self, first: int, last: int, ready: queue.Queue, stop: threading.Event) -> None:
        for low, high in self._blocks(first, last):
            try:
                block: object = self._block(low, high, self._cut)
            except BaseException as error:
                block = error
            while not stop.is_set():
                try:
                    ready.put(block, timeout=0.2)
                    break
                except queue.Full:
                    continue
            if stop.is_set() or isinstance(block, BaseException):
                return


def eval_chunks(
    data: Pixels | Encoded,
    augment: Augment,
    eval_batch: int,
    *,
    replica: int = 0,
    num_replicas: int = 1,
    threads: int = 0,
    upload: Send | None = None,
) -> Iterator[tuple[int, Batch]]:
    """(chunk number, Batch) of the whole validation chunks that this replica takes; empty for one without.

    threads: as many decode, and the next chunk is prepared while the caller looks at one; 0: the caller does it all.
    """
    bounds = chunk_bounds(len(data.labels), eval_batch)
    pictures = Pictures(data, augment, threads)

    def chunks() -> Iterator[tuple[int, Batch]]:
        for chunk in share(len(bounds), replica, num_replicas):
            chosen = np.arange(*bounds[chunk])
            images, labels = pictures.val(chosen)
            there, sent = _sent(images, labels, upload)
            yield chunk, Batch(there[0], there[1], torch.from_numpy(chosen), len(chosen), sent=sent)

    return _ahead(chunks()) if threads and not hasattr(data, "pixels") else chunks()


def _sent(images: np.ndarray, labels: np.ndarray, upload: Send | None) -> tuple[Tensors, Sent | None]:
    tensors = (_dense(images), torch.from_numpy(labels))
    return upload(tensors) if upload else (tensors, None)


def _dense(array: np.ndarray) -> torch.Tensor:
    """Without a hole in memory; images may lie there plane after plane or pixel after pixel."""
    tensor = torch.from_numpy(array)
    by_pixel = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor if by_pixel else tensor.contiguous()


def _ahead(items: Iterator[tuple[int, Batch]]) -> Iterator[tuple[int, Batch]]:
    """The same items, each made while the one before it is used."""
    with ThreadPoolExecutor(1, "chunks") as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item
