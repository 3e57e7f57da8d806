from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from shoal.step.float16 import Float16

if TYPE_CHECKING:
    import torch


class O3(Float16, frozen=True, kw_only=True):
    """Apex's "float16 throughout": parameters, statistics, optimizer and what is saved; no masters, a fixed loss scale.
    A measure of the greatest speed; it trains worse, or not at all."""

    name: Literal["O3"] = "O3"
    loss_scale: Literal["dynamic"] | Annotated[float, Meta(gt=0)] = 1.0
    """What the loss is multiplied with, so that small gradients do not vanish: a number, or dynamic, as for O1."""

    def dtype(self) -> torch.dtype:
        import torch

        return torch.float16

    def computing(self, model: torch.nn.Module) -> torch.nn.Module:
        from shoal.step.formats import Halved

        return Halved(model, keep_batchnorm=True)  # every parameter is float16 already
