"""Batches: the recipe's global batches, cut to this replica's shards, prepared ahead of the step that needs them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from shoal.base.duration import Span
from shoal.data.augment import Augment
from shoal.data.order import chunk_bounds, order, shard_bounds, share
from shoal.data.source import Pixels


@dataclass(frozen=True)
class Batch:
    """Images to compute together: one shard of a global batch, or several under `norm: sync`, or a validation chunk."""

    images: torch.Tensor
    """uint8 [B, C, H, W]."""
    labels: torch.Tensor
    """int64 [B]; -1 where there is none."""
    indices: torch.Tensor
    """int64 [B], of the samples in their source."""
    count_global: int
    """Images in the whole global batch of this step, over all workers."""
    step: int = 0
    """0-based optimizer step the batch belongs to."""
    shards: tuple[tuple[int, int], ...] = ((0, 0),)
    """(shard, images of it) in the order of the images."""
    num_shards: int = 1
    """Shards of the global batch that hold images, over all workers."""
    all_busy: bool = True
    """Whether every worker has images in this step; a short last batch may leave some without."""

    def to(self, device: torch.device) -> Batch:
        """The same on `device`; pinned memory is copied without waiting."""
        if device.type == "cpu":
            return self
        images, labels, indices = (t.to(device, non_blocking=True) for t in (self.images, self.labels, self.indices))
        return Batch(images, labels, indices, self.count_global, self.step, self.shards, self.num_shards, self.all_busy)


@dataclass(frozen=True)
class Cut:
    """How global batches are cut: a function of the recipe, and of this replica's place only in what it takes."""

    span: Span
    shards: int
    seed: int
    replica: int = 0
    num_replicas: int = 1
    merged: bool = False
    """All shards of the replica as one Batch, as `norm: sync` needs."""

    def samples(self, step: int) -> tuple[int, int, int]:
        """(epoch, low, high): the global batch of `step` is order(epoch)[low:high]."""
        epoch, position = divmod(step, self.span.steps_per_epoch)
        low = position * self.span.batch
        return epoch, low, min(low + self.span.batch, self.span.images_per_epoch)

    def count(self, step: int) -> int:
        _, low, high = self.samples(step)
        return high - low


class Batches:
    """Iterates over steps from any one on: each item is the list of Batches this replica computes in that step.

    A thread prepares `ahead` steps in advance. `waited_s` is the time the caller stood still for want of data.
    """

    def __init__(
        self, data: Pixels, augment: Augment, cut: Cut, *, ahead: int = 3, thread: bool = True, pin: bool = False
    ) -> None:
        self._data, self._augment, self._cut, self._pin = data, augment, cut, pin
        self._ahead, self._thread = ahead, thread
        self._epoch, self._order = -1, np.empty(0, np.int64)
        self.waited_s = 0.0

    def prepare(self, step: int) -> list[Batch]:
        """The Batches of one step, made here and now."""
        cut = self._cut
        epoch, low, high = cut.samples(step)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, order(len(self._data.labels), cut.seed, epoch)
        count = high - low
        bounds = shard_bounds(count, cut.shards)
        mine = [(shard, *bounds[shard]) for shard in share(cut.shards, cut.replica, cut.num_replicas)]
        mine = [(shard, first, last) for shard, first, last in mine if last > first]
        if not mine:
            return []
        start = mine[0][1]
        chosen = self._order[low + start : low + mine[-1][2]]
        images = self._augment.train(self._data.pixels(chosen), chosen, seed=cut.seed, epoch=epoch)
        filled = min(count, cut.shards)
        busy = all(share(cut.shards, r, cut.num_replicas).start < filled for r in range(cut.num_replicas))
        whole = [self._tensor(array) for array in (images, self._data.labels[chosen], chosen)]
        pieces = [mine] if cut.merged else [[piece] for piece in mine]
        return [
            Batch(
                *(tensor[piece[0][1] - start : piece[-1][2] - start] for tensor in whole),
                count_global=count,
                step=step,
                shards=tuple((shard, last - first) for shard, first, last in piece),
                num_shards=filled,
                all_busy=busy,
            )
            for piece in pieces
        ]

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.pin_memory() if self._pin else tensor

    def steps(self, first: int, last: int) -> Generator[list[Batch], None, None]:
        """The Batches of steps first … last-1."""
        if not self._thread:
            for step in range(first, last):
                began = time.perf_counter()
                batches = self.prepare(step)
                self.waited_s += time.perf_counter() - began
                yield batches
            return
        ready: queue.Queue = queue.Queue(self._ahead)
        stop = threading.Event()
        worker = threading.Thread(target=self._produce, args=(first, last, ready, stop), name="batches", daemon=True)
        worker.start()
        try:
            for _ in range(first, last):
                try:
                    item = ready.get_nowait()
                except queue.Empty:
                    began = time.perf_counter()
                    item = ready.get()
                    self.waited_s += time.perf_counter() - began
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stop.set()
            while not ready.empty():
                ready.get_nowait()
            worker.join()

    def _produce(self, first: int, last: int, ready: queue.Queue, stop: threading.Event) -> None:
        for step in range(first, last):
            try:
                item: object = self.prepare(step)
            except BaseException as error:
                item = error
            while not stop.is_set():
                try:
                    ready.put(item, timeout=0.2)
                    break
                except queue.Full:
                    continue
            if stop.is_set() or isinstance(item, BaseException):
                return


def eval_chunks(
    data: Pixels, augment: Augment, eval_batch: int, *, replica: int = 0, num_replicas: int = 1
) -> Iterator[tuple[int, Batch]]:
    """(chunk number, Batch) of the whole validation chunks that this replica takes; empty for one without."""
    count = len(data.labels)
    bounds = chunk_bounds(count, eval_batch)
    for chunk in share(len(bounds), replica, num_replicas):
        chosen = np.arange(*bounds[chunk])
        images = np.ascontiguousarray(augment.centre(data.pixels(chosen)))
        yield (
            chunk,
            Batch(
                torch.from_numpy(images), torch.from_numpy(data.labels[chosen]), torch.from_numpy(chosen), len(chosen)
            ),
        )
