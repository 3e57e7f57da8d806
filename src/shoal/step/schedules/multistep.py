from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from shoal.base.duration import Duration, Span
from shoal.step.schedule import Schedule


class Multistep(Schedule, frozen=True, kw_only=True):
    """The rate times `gamma` at each of the stated times."""

    name: Literal["multistep"] = "multistep"
    at: tuple[Duration, ...]
    """When the rate drops, as [30ep, 60ep, 80ep]."""
    gamma: Annotated[float, Meta(gt=0, le=1)] = 0.1
    """Factor of each drop."""

    def shape(self, images: int, total: int, span: Span) -> float:
        return self.gamma ** sum(images >= when.images(span) for when in self.at)
