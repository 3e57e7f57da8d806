from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal

from shoal.step.precision import Precision

if TYPE_CHECKING:
    import torch


class Bf16(Precision, frozen=True, kw_only=True):
    """bfloat16 where torch's autocast deems it safe, float32 parameters. Needs no loss scaling."""

    name: Literal["bf16"] = "bf16"

    def context(self, device: torch.device) -> AbstractContextManager:
        import torch

        return torch.autocast(device.type, torch.bfloat16)
