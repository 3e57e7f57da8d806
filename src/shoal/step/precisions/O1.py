from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal

from shoal.step.float16 import Float16

if TYPE_CHECKING:
    import torch


class O1(Float16, frozen=True, kw_only=True):
    """Apex's word for fp16: float16 for what it is safe for, operation by operation; float32 parameters; dynamic loss
    scale."""

    name: Literal["O1"] = "O1"

    def context(self, device: torch.device) -> AbstractContextManager:
        import torch

        return torch.autocast(device.type, torch.float16)
