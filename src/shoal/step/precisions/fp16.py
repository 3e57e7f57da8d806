from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal

from shoal.step.float16 import Float16

if TYPE_CHECKING:
    import torch


class Fp16(Float16, frozen=True, kw_only=True):
    """float16 where torch's autocast deems it safe, float32 parameters, a loss scale that finds its place (O1)."""

    name: Literal["fp16"] = "fp16"

    def context(self, device: torch.device) -> AbstractContextManager:
        import torch

        return torch.autocast(device.type, torch.float16)
