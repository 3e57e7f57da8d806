"""Schedule: the learning rate as a function of images seen, so that it does not know steps, batches or workers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal.base.duration import Duration, Span
from shoal.recipe.part import Part


class Schedule(Part, frozen=True, kw_only=True):
    """Options that every schedule has. A schedule gives a factor; the rate is the optimizer's peak times it."""

    SEAM: ClassVar[str] = "schedules"

    warmup: Duration = Duration.parse("0ep")
    """Time of a linear rise before the schedule takes over; the schedule runs on underneath."""
    warmup_from: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Factor at which the rise begins."""

    def factor(self, images: int, total: int, span: Span) -> float:
        """The factor for the step that begins after `images` of `total` images."""
        warm = float(self.warmup.images(span))
        value = self.shape(images, total, span)
        if images < warm:
            value *= self.warmup_from + (1 - self.warmup_from) * (images / warm)
        return value

    @abstractmethod
    def shape(self, images: int, total: int, span: Span) -> float:
        """The factor without warm-up."""
