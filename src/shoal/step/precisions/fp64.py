from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from shoal.step.precision import Precision

if TYPE_CHECKING:
    import torch


class Fp64(Precision, frozen=True, kw_only=True):
    """float64 throughout: slow, and the format in which sameness can be proved by a tolerance."""

    name: Literal["fp64"] = "fp64"

    def dtype(self) -> torch.dtype:
        import torch

        return torch.float64
