from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from shoal.base.duration import Duration, Span
from shoal.step.schedule import Schedule


class Step(Schedule, frozen=True, kw_only=True):
    """The rate times `gamma` each time `every` has passed."""

    name: Literal["step"] = "step"
    every: Duration = Duration.parse("30ep")
    """Time between drops."""
    gamma: Annotated[float, Meta(gt=0, le=1)] = 0.1
    """Factor of each drop."""

    def faults(self) -> list[tuple[str, str]]:
        return [("every", "must be longer than 0")] if not self.every.amount else []

    def shape(self, images: int, total: int, span: Span) -> float:
        return self.gamma ** int(images / self.every.images(span))
