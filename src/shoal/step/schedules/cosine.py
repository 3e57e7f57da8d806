from __future__ import annotations

import math
from typing import Annotated, Literal

from msgspec import Meta

from shoal.base.duration import Span
from shoal.step.schedule import Schedule


class Cosine(Schedule, frozen=True, kw_only=True):
    """Half a cosine from the peak to the end (Loshchilov, Hutter 2017), counted from the end of the warm-up."""

    name: Literal["cosine"] = "cosine"
    end: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Factor at the end of training."""

    def shape(self, images: int, total: int, span: Span) -> float:
        warm = float(self.warmup.images(span))
        done = min(max((images - warm) / max(total - warm, 1), 0.0), 1.0)
        return self.end + (1 - self.end) * 0.5 * (1 + math.cos(math.pi * done))
