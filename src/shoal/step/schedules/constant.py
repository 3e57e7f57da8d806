from __future__ import annotations

from typing import Literal

from shoal.base.duration import Span
from shoal.step.schedule import Schedule


class Constant(Schedule, frozen=True, kw_only=True):
    """The peak rate throughout."""

    name: Literal["constant"] = "constant"

    def shape(self, images: int, total: int, span: Span) -> float:
        return 1.0
