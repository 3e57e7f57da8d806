from __future__ import annotations

from typing import Literal

from shoal.step.float16 import Autocast


class Fp16(Autocast, frozen=True, kw_only=True):
    """float16 where torch's autocast deems it safe, float32 parameters, a loss scale that finds its place (O1)."""

    name: Literal["fp16"] = "fp16"
