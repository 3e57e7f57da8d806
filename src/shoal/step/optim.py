"""Optim: how gradients become steps. The optimizers are torch's and timm's; grouping and scaling are told here."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from shoal.recipe.part import Part

if TYPE_CHECKING:
    import torch


class Optim(Part, frozen=True, kw_only=True):
    """Options that every optimizer has."""

    SEAM: ClassVar[str] = "optims"

    lr: Annotated[float, Meta(ge=0)]
    """Peak learning rate."""
    lr_batch: Annotated[int, Meta(ge=1)] | None = None
    """The batch that lr is stated for; another one scales lr linearly (Goyal et al. 2017). Absent: lr as it stands."""
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    """Decay of weights per step."""
    decay_norms: bool = True
    """Decay biases and norm parameters too, as torch does; false leaves all one-dimensional parameters alone."""
    clip_norm: Annotated[float, Meta(gt=0)] | None = None
    """Largest 2-norm of the whole gradient; longer ones are scaled down to it. Absent: no limit."""

    def peak(self, batch: int) -> float:
        """Peak learning rate at this global batch."""
        return self.lr * batch / self.lr_batch if self.lr_batch else self.lr

    def groups(self, model: torch.nn.Module) -> list[dict[str, Any]]:
        """Parameter groups, in the model's order."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if self.decay_norms or not self.weight_decay:
            return [{"params": parameters}]
        return [
            {"params": [p for p in parameters if p.ndim > 1]},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]

    @abstractmethod
    def make(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The optimizer over the model's trainable parameters; its rate is set anew at every step."""


def fused(model: torch.nn.Module) -> bool | None:
    """torch's one-kernel steps where it has them (CPU and CUDA): several times faster on many small tensors."""
    kinds = {parameter.device.type for parameter in model.parameters()}
    return True if kinds <= {"cpu"} or kinds <= {"cuda"} else None
