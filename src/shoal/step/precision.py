"""Precision: the number formats of parameters, forward and backward pass, and what happens at a non-finite gradient."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar, Literal

from shoal.recipe.part import Part

if TYPE_CHECKING:
    import torch

    from shoal.step.scaling import Scaler


class Precision(Part, frozen=True, kw_only=True):
    """Options and verbs of every precision."""

    SEAM: ClassVar[str] = "precisions"

    nonfinite: Literal["stop", "skip"] = "stop"
    """At a gradient that is not finite: stop and name the first such tensor, or skip the step on all workers alike
    (20 skips in a row stop). Formats with a loss scale skip by default."""

    def dtype(self) -> torch.dtype:
        """The format of parameters and of what the model is fed."""
        import torch

        return torch.float32

    def context(self, device: torch.device) -> AbstractContextManager:
        """Where the forward pass runs."""
        return nullcontext()

    def computing(self, model: torch.nn.Module) -> torch.nn.Module:
        """What computes in this format: the model, or a module that shares its parameters; gives float32 logits or
        what the context makes of them."""
        return model

    def scaler(self) -> Scaler:
        """A new one for a training."""
        from shoal.step.scaling import Scaler

        return Scaler()

    def suited(self, device: torch.device, *, must: bool = True) -> tuple[Precision, str | None]:
        """What to compute with on this device, and what to tell of it. must: UsageError where it should not be used,
        instead of one that can be."""
        return self, None
