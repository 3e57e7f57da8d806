"""Float16: what precisions with a loss scale have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from shoal.base.errors import UsageError
from shoal.step.precision import Precision

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

    from shoal.step.scaling import Scaler

_FAST_FROM = (7, 0)
"""CUDA's first devices that compute float16 faster than float32."""


class Float16(Precision, frozen=True, kw_only=True):
    """Options of every precision that computes in float16, and its loss scale."""

    nonfinite: Literal["stop", "skip"] = "skip"
    loss_scale: Literal["dynamic"] | Annotated[float, Meta(gt=0)] = "dynamic"
    """What the loss is multiplied with, so that small gradients do not vanish: a number, or dynamic, which is halved
    when a gradient overflows and doubled after growth_steps steps without, up to 2^24; below 1 training stops."""
    init_scale: Annotated[float, Meta(ge=1, le=2**24)] = 65536.0
    """The dynamic scale's first value."""
    growth_steps: Annotated[int, Meta(ge=1)] = 2000
    """Steps without overflow after which the dynamic scale is doubled."""
    unsuited: Literal["stop", "slow", "fp32"] = "stop"
    """On a device without fast float16 (a CPU, or a GPU before Volta): stop before training and say so, compute all the
    same but slowly, or fall back to fp32, which is told."""

    def faults(self) -> list[tuple[str, str]]:
        if self.loss_scale == "dynamic" and self.nonfinite == "stop":
            told = "a dynamic loss scale finds its place by steps that overflow and are skipped"
            return [("nonfinite", f"{told}; leave it at skip, or state a number as loss_scale")]
        return []

    def scaler(self) -> Scaler:
        from shoal.step.scaling import Scaler

        if self.loss_scale == "dynamic":
            return Scaler(self.init_scale, dynamic=True, growth_steps=self.growth_steps)
        return Scaler(float(self.loss_scale))

    def suited(self, device: torch.device, *, must: bool = True) -> tuple[Precision, str | None]:
        lacking = _lacking(device)
        if lacking is None or self.unsuited == "slow":
            return self, lacking and f"precision {self.name}: {lacking}; it is computed all the same, slowly"
        if self.unsuited == "fp32" or not must:
            from shoal.step.precisions.fp32 import Fp32

            fallen = Fp32(nonfinite=self.nonfinite)
            return fallen, f"precision {self.name}: {lacking}; fell back to fp32, as precision.unsuited says"
        raise UsageError(
            f"precision {self.name}: {lacking}; use precision=bf16 or fp32, let it fall back with "
            "precision.unsuited=fp32, or compute it slowly with precision.unsuited=slow"
        )


class Autocast(Float16, frozen=True, kw_only=True):
    """float16 where torch's autocast deems it safe, operation by operation."""

    def context(self, device: torch.device) -> AbstractContextManager:
        import torch

        return torch.autocast(device.type, torch.float16)


def _lacking(device: torch.device) -> str | None:
    """Why float16 would be slow there."""
    if device.type != "cuda":
        return f"a {device.type.upper()} has no fast float16"
    import torch

    if torch.cuda.get_device_capability(device) < _FAST_FROM:
        return f"{torch.cuda.get_device_name(device)} has no fast float16"
    return None
