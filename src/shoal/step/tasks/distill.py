from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shoal.models import SUFFIXES, check_name
from shoal.recipe.part import Options
from shoal.step.task import TwoPartTask

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.data.batches import Batch


class Teacher(Options, frozen=True, kw_only=True):
    """A trained model to learn from: one of Shoal's own trainings, or a model by its name with weights."""

    model: str | None = None
    """Its name, as a recipe's `model` has it (resnet50d, cifar-resnet20 …); absent: `run` says it all."""
    pretrained: bool | str = True
    """With `model`: true takes timm's weights; a path, those of a .safetensors, .pt or .pth file."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """With `model`: extra keyword arguments of the timm model."""
    run: str | None = None
    """A run folder, whose best checkpoint is taken, or a checkpoint."""

    def faults(self) -> list[tuple[str, str]]:
        if (self.model is None) == (self.run is None):
            return [
                ("run", "state either run (a run folder or a checkpoint) or model (a name, with pretrained weights)")
            ]
        if self.model is None:
            given = {"pretrained": self.pretrained is not True, "options": bool(self.options)}
            return [
                (key, "is for a teacher by its model's name; a run says it itself")
                for key, said in given.items()
                if said
            ]
        wrong = []
        if fault := check_name(self.model):
            wrong.append(("model", fault))
        if self.pretrained is False:
            wrong.append(("pretrained", "a teacher without weights has learnt nothing; true, or the path of a file"))
        elif isinstance(self.pretrained, str) and not self.pretrained.endswith(SUFFIXES):
            wrong.append(("pretrained", f"'{self.pretrained}' is none of {', '.join(SUFFIXES)}"))
        return wrong


class Distill(TwoPartTask, frozen=True, kw_only=True):
    """Learns from a teacher: a trained model says how likely each class is, for every image, labelled or not. The
    teacher is never trained, nor part of what workers exchange or checkpoints hold."""

    name: Literal["distill"] = "distill"
    teacher: Teacher
    """Whom to learn from: a run of Shoal (`teacher: {run: runs/large}`), or a model with weights
    (`teacher: {model: resnet50d, pretrained: FILE}`)."""
    divergence: Literal["kl", "symmetric"] = "kl"
    """How far the student is from the teacher. kl: Kullback-Leibler divergence of softened probabilities, times the
    temperature squared (Hinton et al. 2015). symmetric: the mean of both directions, without temperature, as
    PaddleClas's SSLD."""
    temperature: Annotated[float, Meta(gt=0)] | None = None
    """Of kl: what logits are divided by before softmax; absent: 4. At 1 its gradient is that of cross-entropy with the
    teacher's probabilities as labels."""
    distill_weight: Annotated[float, Meta(gt=0)] = 1.0
    """What the divergence counts in the loss."""
    label_weight: Annotated[float, Meta(ge=0)] = 1.0
    """What the cross-entropy on labels counts beside it; 0: labels only count for accuracy."""
    smoothing: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Part of each label that is spread evenly over all classes."""
    cache: str | None = None
    """File of what the teacher says of each training image: made before training where it is not there, then read in
    the place of asking again. Needs images that look the same in every epoch: no crops, padding or mirroring."""
    top_k: Annotated[int, Meta(ge=1)] = 10
    """Of cache: classes kept for each image; the rest of the probability counts as one class."""

    def faults(self) -> list[tuple[str, str]]:
        if self.divergence == "symmetric" and self.temperature is not None:
            return [("temperature", "is of divergence: kl; the symmetric one has none")]
        return []

    @property
    def softness(self) -> float:
        """The temperature, as the divergence has it."""
        return 1.0 if self.divergence == "symmetric" else self.temperature or 4.0

    def loss(self, net: Callable[[Tensor], Tensor], inputs: Tensor, batch: Batch, seed: int) -> tuple[Tensor, Tensor]:
        raise TypeError("a teacher is needed: train.teaching makes a step.distilling.Taught of this")

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        from shoal.data.source import NO_LABEL

        labels = labels.clamp(min=NO_LABEL)
        return cross_entropy(logits, labels, reduction="sum", label_smoothing=self.smoothing, ignore_index=NO_LABEL)

    def without_labels(self, loss: float, label_loss: float) -> float:
        return (loss - self.label_weight * label_loss) / self.distill_weight
