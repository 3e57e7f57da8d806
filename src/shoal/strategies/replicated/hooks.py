"""Hooks: how a bucket of gradients becomes the sum over all workers; whole, or in fewer bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from shoal.kvstore.compress import TwoBit

Later = torch.futures.Future[torch.Tensor]


class Hook(ABC):
    """Called by DDP for each bucket as the backward pass goes on. torch's own divide by the number of workers; here the
    gradient is a sum, so they are given as many times as much."""

    bytes_sent = 0
    """By this worker so far."""
    may_overflow = ""
    """How finite gradients may become infinite, if they may."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks

    @abstractmethod
    def sum(self, bucket: Any) -> Later:
        """Sets the bucket's buffer to the sum over all workers, which is what the future holds."""

    def forget(self) -> None:  # noqa: B027  (most remember nothing)
        """The step was skipped: what was kept of its gradients for the next is no gradient."""

    def _reduced(self, count: int, wide: int) -> None:
        """Counts a ring all-reduce of so many numbers, `wide` bytes each."""
        self.bytes_sent += 2 * (self._num_ranks - 1) * count * wide // self._num_ranks


class Whole(Hook):
    """Every number as it is."""

    def __init__(self, num_ranks: int, group: Any = None) -> None:
        """group: torch's, of these ranks; None: all."""
        super().__init__(num_ranks)
        self._group = group

    def sum(self, bucket: Any) -> Later:
        buffer = bucket.buffer()
        self._reduced(buffer.numel(), buffer.element_size())
        future = dist.all_reduce(buffer, group=self._group, async_op=True).get_future()  # type: ignore[union-attr]
        return future.then(lambda done: done.value()[0])


class Half(Hook):
    """float16 or bfloat16. What is too large for it becomes infinite, and the step is skipped or stops."""

    def __init__(self, num_ranks: int, kind: str, scale: float = 1.0) -> None:
        """scale: what lifts a gradient, which is a mean over the batch, into float16's range."""
        super().__init__(num_ranks)
        self._hook = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}[kind]
        self._scale = scale
        self.may_overflow = "float16 was too small for their sum: strategy.compress=bf16" if kind == "fp16" else ""

    def sum(self, bucket: Any) -> Later:
        buffer = bucket.buffer()
        buffer.mul_(self._num_ranks * self._scale)
        self._reduced(buffer.numel(), 2)
        future = self._hook(None, bucket)  # type: ignore[arg-type]
        return future if self._scale == 1 else future.then(lambda done: done.value().div_(self._scale))


class PowerSgd(Hook):
    """Of each matrix two thin ones, of the given rank; what they leave out is added to the next step's gradient
    (Vogels, Karimireddy, Jaggi 2019). Vectors and small matrices are sent whole, and all in the first steps."""

    def __init__(self, num_ranks: int, rank: int, after: int) -> None:
        """after: steps of whole gradients at the start, at least 2: DDP cuts its buckets anew after the first."""
        super().__init__(num_ranks)
        self._state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=max(2, after), random_seed=0
        )

    def sum(self, bucket: Any) -> Later:
        buffer, state = bucket.buffer(), self._state
        buffer.mul_(self._num_ranks)
        whole, before = state.iter < state.start_powerSGD_iter, state.total_numel_after_compression
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        count = buffer.numel() if whole else state.total_numel_after_compression - before
        self._reduced(count, buffer.element_size())
        return future

    def forget(self) -> None:
        for memory in (self._state.error_dict, self._state.p_memory_dict, self._state.q_memory_dict):
            memory.clear()


class Ternary(Hook):
    """Two bits for each number: threshold, -threshold or 0, the rest being added to the next step's gradient. Every
    worker sends its own to all others, so that the sum is exact: bytes grow with their number."""

    def __init__(self, num_ranks: int, threshold: float) -> None:
        super().__init__(num_ranks)
        self._threshold = threshold
        self._codecs: dict[int, tuple[list[int], TwoBit]] = {}
        """By bucket, with the parameters in it: DDP cuts anew after its first step."""

    def sum(self, bucket: Any) -> Later:
        buffer, held = bucket.buffer(), [id(parameter) for parameter in bucket.parameters()]
        known, codec = self._codecs.get(bucket.index(), ([], None))
        if codec is None or known != held:
            codec = TwoBit(self._threshold)
            self._codecs[bucket.index()] = held, codec
        mine = codec.encode(0, buffer).contiguous()
        everybodys = [torch.empty_like(mine) for _ in range(self._num_ranks)]
        self.bytes_sent += (self._num_ranks - 1) * mine.numel()

        def add(done: Any) -> torch.Tensor:
            one = torch.empty_like(buffer)
            done.value()
            buffer.zero_()
            for data in everybodys:
                codec.decode(data, one)
                buffer.add_(one)
            return buffer

        return dist.all_gather(everybodys, mine, async_op=True).get_future().then(add)  # type: ignore[union-attr]
