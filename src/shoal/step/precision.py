"""Precision: the number formats of parameters, forward and backward pass, and what happens at a non-finite gradient."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar, Literal

from shoal.recipe.part import Part

if TYPE_CHECKING:
    import torch


class Precision(Part, frozen=True, kw_only=True):
    """Options and verbs of every precision."""

    SEAM: ClassVar[str] = "precisions"

    nonfinite: Literal["stop", "skip"] = "stop"
    """At a gradient that is not finite: stop and name the first such tensor, or skip the step on all workers alike
    (20 skips in a row stop)."""

    def dtype(self) -> torch.dtype:
        """The format of parameters and of what the model is fed."""
        import torch

        return torch.float32

    def context(self, device: torch.device) -> AbstractContextManager:
        """Where the forward pass runs."""
        return nullcontext()
