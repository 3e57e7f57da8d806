from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from shoal.step.task import Task

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.data.batches import Batch


class Classify(Task, frozen=True, kw_only=True):
    """Cross-entropy on one label per image; label smoothing, mixup and cutmix on request."""

    name: Literal["classify"] = "classify"
    smoothing: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Part of each label that is spread evenly over all classes."""
    mixup: Annotated[float, Meta(ge=0)] = 0.0
    """Alpha of mixup (Zhang et al. 2018): pairs of images are blended. 0: off."""
    cutmix: Annotated[float, Meta(ge=0)] = 0.0
    """Alpha of cutmix (Yun et al. 2019): a rectangle comes from the partner. 0: off. With mixup too: either, by turns
    of a coin."""

    def loss(self, net: Callable[[Tensor], Tensor], inputs: Tensor, batch: Batch, seed: int) -> tuple[Tensor, Tensor]:
        from torch.nn.functional import cross_entropy

        from shoal.data.source import NO_LABEL
        from shoal.step import mix

        labels = batch.labels.clamp(min=NO_LABEL)

        def summed(logits: Tensor, labels: Tensor, reduction: str = "sum") -> Tensor:
            return cross_entropy(
                logits, labels, reduction=reduction, label_smoothing=self.smoothing, ignore_index=NO_LABEL
            )

        if not (self.mixup or self.cutmix):
            logits = net(inputs)
            return summed(logits, labels), logits
        mixed, partner, share = mix.mixed(inputs, batch, seed, mixup=self.mixup, cutmix=self.cutmix)
        logits = net(mixed)
        own = summed(logits, labels, "none")
        other = summed(logits, labels[partner], "none")
        return (share * own + (1 - share) * other).sum(), logits
