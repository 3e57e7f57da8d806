"""Stretches: asynchronous training from one meeting of all workers to the next.

Within a stretch every worker takes the next shard that nobody has, wherever it lies: position p is shard p % V of step
p // V. What a worker took and did not finish before it died is handed out again. A stretch ends before an act for which
all must be together: the end of an epoch, a validation, a checkpoint; then all hold the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter, time
from typing import TYPE_CHECKING

from shoal.data.batches import Batch
from shoal.step.served import Served
from shoal.step.stopwatch import EXCHANGE, INPUT, OTHER, WAITING
from shoal.strategies.replicated.asynchronous import Account, AsyncRig
from shoal.train.signals import StopSignals

if TYPE_CHECKING:
    from shoal.train.trainer import Trainer


class Stretches:
    """Does for an asynchronous rig what the trainer's loop over steps does for the others."""

    def __init__(self, trainer: Trainer) -> None:
        assert isinstance(trainer.rig, AsyncRig) and isinstance(trainer.gang, Served)
        self._trainer, self._rig, self._gang, self._clock = trainer, trainer.rig, trainer.gang, trainer.clock
        self._shards = trainer.cut.shards
        self._log_steps = 0

    def fit(self, signals: StopSignals) -> int:
        """Returns the ask that ended it, or 0."""
        clock, asked = self._clock, 0
        if self._gang.leads:
            self._rig.seek(clock.step * self._shards)
        self._gang.barrier()
        with ThreadPoolExecutor(1, "shards") as self._ahead:
            for step in clock:
                asked, reached = self._stretch(step, step + clock.ahead, signals)
                self._meet(step, reached)
                if reached > step:
                    for act in clock.tick(reached - step):
                        act()
                    self._trainer.meters.read_interval()
                if asked:
                    clock.stop("signal")
        return asked

    def _stretch(self, step: int, end: int, signals: StopSignals) -> tuple[int, int]:
        """(ask, step reached): all shards up to it are done, by whomever."""
        limit, asked, watch = end * self._shards, 0, self._gang.watch
        self._taken = step * self._shards
        while True:
            did = self._work(limit, None if asked else signals)
            self._trainer.pulse.beat("waits for the last shards", step, self._trainer.patience())
            watch.to(WAITING)
            told = self._gang.roll_call([did, self._taken, signals.ask])
            watch.lap()
            if not asked and (asked := max(ask for _, _, ask in told)):
                # The step under way is finished by all, so that the next begins with a whole one.
                limit = min(limit, -(-max(taken for _, taken, _ in told) // self._shards) * self._shards)
            elif not any(did for did, _, _ in told):  # nobody found anything, not even what a dead worker left
                return asked, limit // self._shards

    def _work(self, limit: int, signals: StopSignals | None) -> int:
        """Shards computed until none is left below `limit`, or a signal asks to stop."""
        did, coming, meanwhile = 0, self._take(limit, signals), 0
        while coming is not None:
            position, batch = coming[0], self._prepared(coming[1])
            # One ahead, but for the last ones: those that all have taken before this worker is done with its shard, for
            # the others would wait for him who is slow, with a second shard in his hands.
            coming = self._take(limit - meanwhile, signals)
            did += 1
            if batch is None:
                self._rig.pass_over()
            else:
                self._compute(position, batch)
            coming = coming or self._take(limit, signals)
            meanwhile = max(0, coming[0] - position) if coming else 0
        return did

    def _take(self, limit: int, signals: StopSignals | None) -> tuple[int, Future[Batch | None]] | None:
        """The next position; its images are made while those before it are computed. None: there is none below `limit`,
        or a signal asks to stop."""
        if signals is not None and signals.ask:
            return None
        self._gang.watch.to(EXCHANGE)
        position = self._rig.take(limit)
        if position is None:
            return None
        self._taken = max(self._taken, position + 1)
        return position, self._ahead.submit(self._trainer.batches.shard, *divmod(position, self._shards))

    def _prepared(self, coming: Future[Batch | None]) -> Batch | None:
        if not coming.done():
            self._gang.watch.to(INPUT)
            began = perf_counter()
            coming.result()
            self._trainer.batches.waited_s += perf_counter() - began
        return coming.result()

    def _compute(self, position: int, batch: Batch) -> None:
        trainer, step = self._trainer, position // self._shards
        trainer.pulse.beat("computes", step, trainer.patience())
        output, skipped = self._rig.forward_backward(batch, last=True), self._rig.scaler.skipped
        stepped, _ = self._rig.apply(trainer.lr(self._clock.span.images_before(step)), len(batch.images))
        self._gang.watch.to(OTHER)
        if stepped:
            trainer.meters.add(batch, output)
        elif self._rig.scaler.skipped > skipped and self._gang.leads:
            with self._as_if(step):
                trainer.tell_skip()
        self._gang.watch.lap()
        trainer.trace()
        if trainer.first_step_at is None:
            trainer.first_step_at = time()
            self._gang.watch.reset()
        if self._gang.leads:
            self._log(step)

    def _log(self, step: int) -> None:
        """The first worker tells how it goes, without the others."""
        clock, span = self._clock, self._clock.span
        begun = clock.step
        if step > begun and any(
            self._trainer.recipe.log_every.due(done, span) for done in range(max(begun, self._log_steps), step)
        ):
            self._log_steps = step
            with self._as_if(step):
                self._trainer.log()

    @contextmanager
    def _as_if(self, step: int) -> Iterator[None]:
        """The clock stands at `step` meanwhile."""
        begun, self._clock.step = self._clock.step, step
        self._clock.count()
        try:
            yield
        finally:
            self._clock.step = begun

    def _meet(self, step: int, reached: int) -> None:
        """All agree, and tell what became of the images between."""
        account = self._rig.agree()
        expected = self._clock.span.images_before(reached) - self._clock.span.images_before(step)
        with self._as_if(reached):
            self._trainer.tell("staleness", **_figures(account, expected, len(self._gang.live)))
            self._trainer.tell_time()


def _figures(account: Account, expected: int, live: int) -> dict:
    return {
        "counts": account.counts,
        "mean": account.mean,
        "max": account.most,
        "pushes": account.pushes,
        "counted": account.images,
        "dropped": account.dropped,
        "expected": expected,
        "again": max(0, account.images + account.dropped - expected),
        "workers": live,
    }
