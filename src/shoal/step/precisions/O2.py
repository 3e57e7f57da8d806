from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from shoal.step.float16 import Float16

if TYPE_CHECKING:
    import torch


class O2(Float16, frozen=True, kw_only=True):
    """Apex's "almost float16": the whole model computes in float16 but for BatchNorm; the optimizer steps float32
    masters, which are what is saved; dynamic loss scale."""

    name: Literal["O2"] = "O2"
    keep_batchnorm_fp32: bool = True
    """Leave the parameters of BatchNorm in float32 in the forward pass."""

    def computing(self, model: torch.nn.Module) -> torch.nn.Module:
        from shoal.step.formats import Halved

        return Halved(model, keep_batchnorm=self.keep_batchnorm_fp32)
