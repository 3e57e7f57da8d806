from __future__ import annotations

from typing import Literal

from shoal.step.precision import Precision


class Fp32(Precision, frozen=True, kw_only=True):
    """float32 throughout."""

    name: Literal["fp32"] = "fp32"
