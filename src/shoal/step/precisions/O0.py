from __future__ import annotations

from typing import Literal

from shoal.step.precision import Precision


class O0(Precision, frozen=True, kw_only=True):
    """Apex's word for float32 throughout: the same as fp32."""

    name: Literal["O0"] = "O0"
