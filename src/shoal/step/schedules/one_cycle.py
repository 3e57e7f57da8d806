from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from shoal.base.duration import Span
from shoal.step.schedule import Schedule


class OneCycle(Schedule, frozen=True, kw_only=True):
    """A linear rise to the peak and a linear fall to the end (Smith, Topin 2018), as a triangle."""

    name: Literal["one_cycle"] = "one_cycle"
    peak_at: Annotated[float, Meta(gt=0, lt=1)] = 0.25
    """Part of the training at which the peak is reached, 0 to 1."""
    start: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """Factor at the beginning."""
    end: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Factor at the end."""

    def shape(self, images: int, total: int, span: Span) -> float:
        done = images / total  # quotients first: they are at most 1, and so is then the factor
        if done < self.peak_at:
            return self.start + (1 - self.start) * (done / self.peak_at)
        return self.end + (1 - self.end) * ((1 - done) / (1 - self.peak_at))
