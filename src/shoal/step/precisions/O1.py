from __future__ import annotations

from typing import Literal

from shoal.step.float16 import Autocast


class O1(Autocast, frozen=True, kw_only=True):
    """Apex's word for fp16: float16 for what it is safe for, operation by operation; float32 parameters; dynamic loss
    scale."""

    name: Literal["O1"] = "O1"
