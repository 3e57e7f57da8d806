"""Clock: steps, epochs, images; seconds trained and paused; what is due after a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shoal.base.duration import Duration, Span


class Clock:
    """Counts optimizer steps done. Iterating gives the number of each step (0-based) until the end or a stop."""

    def __init__(self, span: Span, length: Duration) -> None:
        self.span = span
        self.steps = length.steps(span)
        """Steps of the whole training."""
        self.step = 0
        """Steps done."""
        self.trained_s = 0.0
        self.paused_s = 0.0
        """Seconds of validation and saving."""
        self.stopped: str | None = None
        """Why training ends before its length, once it is known."""
        self._acts: list[tuple[Duration, Callable[[], None], bool]] = []
        self._since = 0.0

    @property
    def images(self) -> int:
        """Images seen."""
        return self.span.images_before(self.step)

    @property
    def total_images(self) -> int:
        return self.span.images_before(self.steps)

    @property
    def epoch(self) -> int:
        """The epoch (0-based) that the last step done belongs to."""
        return max(0, self.step - 1) // self.span.steps_per_epoch

    @property
    def step_of_epoch(self) -> int:
        """Steps done in that epoch."""
        return self.step - self.epoch * self.span.steps_per_epoch

    @property
    def ended(self) -> bool:
        return self.step >= self.steps or self.stopped is not None

    def every(self, period: Duration, act: Callable[[], None], *, alone: bool = False) -> None:
        """Has `act` done each time `period` has passed, and at the end; acts are done in the order given. alone: where
        workers go their own ways, each may do it without the others."""
        self._acts.append((period, act, alone))

    @property
    def ahead(self) -> int:
        """Steps until all workers must be together for an act."""
        step = self.step
        while step + 1 < self.steps and not any(
            period.due(step, self.span) for period, _, alone in self._acts if not alone
        ):
            step += 1
        return step + 1 - self.step

    def __iter__(self) -> Iterator[int]:
        self._since = time.perf_counter()
        while not self.ended:
            yield self.step
        self.count()

    def tick(self, steps: int = 1) -> list[Callable[[], None]]:
        """Steps are done; returns what is due now."""
        done = range(self.step, self.step + steps)
        self.step += steps
        self.count()
        last = self.step >= self.steps
        return [act for period, act, _ in self._acts if last or any(period.due(step, self.span) for step in done)]

    def stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason

    def count(self) -> None:
        now = time.perf_counter()
        self.trained_s += now - self._since
        self._since = now

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is no training time."""
        self.count()
        began = self._since
        try:
            yield
        finally:
            self._since = time.perf_counter()
            self.paused_s += self._since - began
