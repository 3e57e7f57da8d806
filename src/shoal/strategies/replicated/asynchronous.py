"""AsyncRig: every worker pushes the gradient of one shard at a time and pulls what the weights are by then."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from shoal.data.batches import Batch
from shoal.step.served import Served
from shoal.step.stopwatch import EXCHANGE, UPDATE
from shoal.strategies import Applied
from shoal.strategies.replicated.servers import PsRig, Pushed

_MOST = 256
"""Staleness from which on pushes are counted together."""


class PushedAlone(Pushed):
    """Each batch is pushed by itself; buffers stay this worker's own until all agree on them."""

    def __init__(self, gang: Served, shards: int) -> None:
        super().__init__(gang)
        self._part = gang.num_ranks / shards
        """How far a push moves the buffers: each worker makes shards / workers of them in a batch."""

    def after_forward(self, batch: Batch, last: bool, ask: int) -> None:
        self._flat.zero_()
        self._buckets.arm()

    def finish(self, ask: int) -> int:
        self._buckets.flush()
        self._buffers.keep(self._part)
        return ask


@dataclass(frozen=True)
class Account:
    """What became of the pushes of all workers since they last met."""

    counts: list[int]
    """Applied pushes by staleness."""
    images: int
    dropped: int
    """Images whose push was dropped for a non-finite gradient."""
    pushes: list[int]
    """By worker; those who are gone have none."""

    @property
    def mean(self) -> float:
        return sum(value * count for value, count in enumerate(self.counts)) / max(1, sum(self.counts))

    @property
    def most(self) -> int:
        return max((value for value, count in enumerate(self.counts) if count), default=0)


class AsyncRig(PsRig):
    """A batch moves the weights as far as in the other strategies, in as many smaller steps."""

    asynchronous = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._pushes = self._followed = 0
        """Pushes of this worker; the version that the average has come to."""
        self._counts = torch.zeros(_MOST, dtype=torch.int64)
        self._images = self._dropped = 0

    def take(self, limit: int) -> int | None:
        """The next position below `limit` that nobody works on; None when there is none now."""
        position = self._client.take(limit)
        return None if position < 0 else position

    def seek(self, position: int) -> None:
        """Where work begins; one worker says it."""
        self._client.seek(position)

    def pass_over(self) -> None:
        """The position taken holds no images."""
        self._client.commit(self._pushes, lr=0.0, finite=False)
        self._pushes += 1

    @torch.no_grad()
    def apply(self, lr: float, images: int) -> Applied:
        (batch,) = self._batches
        self._step = batch.step
        self._gang.watch.to(EXCHANGE)
        self._pushing.finish(self.ask)
        done = self._client.commit(self._pushes, lr=lr, clip_norm=self._spec.clip_norm)
        self._pushes += 1
        elsewhere = not done.applied and math.isfinite(done.norm)
        if not done.applied and not elsewhere and self._precision.nonfinite == "stop":
            raise self._error(batch.step, "")
        self._client.pull(self._host)
        self._gang.watch.to(UPDATE)
        self._arrived()
        if elsewhere:  # a server forgot that this worker had the position, and another one did it
            self._buffers.undo()
            self._batches.clear()
            return Applied(False, self.ask)
        if not done.applied:
            self._dropped += images
            return self._skip(batch.step, self.ask)
        self.scaler.stepped()
        self._counts[min(done.staleness, _MOST - 1)] += 1
        self._images += images
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        if self._average is not None and self._gang.leads:  # the others' pushes came in between
            self._average.follow(self.model, images * max(1, done.version - self._followed))
            self._followed = done.version
        self._batches.clear()
        return Applied(True, self.ask)

    def agree(self) -> Account:
        """Nobody pushes any more: one version of weights, buffers and average for all. A collective."""
        self._followed = self._client.pull(self._host)
        self._arrived()
        mine = int(self._counts.sum())
        self._buffers.agree(self._gang, mine)
        if self._average is not None:
            for tensor in self._average.model.state_dict().values():
                self._gang.broadcast(tensor)
        by_worker = torch.zeros(self._gang.num_ranks, dtype=torch.int64)
        by_worker[self._gang.rank] = mine
        told = torch.cat([by_worker, torch.tensor([self._images, self._dropped]), self._counts])
        self._gang.sum(told)
        self._counts.zero_()
        self._images = self._dropped = 0
        pushes, (images, dropped), counts = told.split([len(by_worker), 2, _MOST])
        most = int(counts.nonzero().max()) if counts.any() else -1
        return Account(counts[: most + 1].tolist(), int(images), int(dropped), pushes.tolist())
