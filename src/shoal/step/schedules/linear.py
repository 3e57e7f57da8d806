from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from shoal.base.duration import Span
from shoal.step.schedule import Schedule


class Linear(Schedule, frozen=True, kw_only=True):
    """A straight fall from the peak to the end."""

    name: Literal["linear"] = "linear"
    end: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Factor at the end."""

    def shape(self, images: int, total: int, span: Span) -> float:
        return self.end + (1 - self.end) * (1 - images / total)
