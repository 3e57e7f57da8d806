"""Progress: where a training stands beside its weights; what makes the next step the one that would have come."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from shoal.base.duration import Span
from shoal.base.errors import UsageError
from shoal.train.evaluate import Score


@dataclass(frozen=True)
class Progress:
    """Numbers only, so that a checkpoint can hold it without pickle."""

    step: int
    """Optimizer steps done."""
    batch: int
    images_per_epoch: int
    shards: int
    optim: str
    """Name of the optimizer whose state the checkpoint holds."""
    best_top1: float = -1.0
    best_step: int = -1
    scored_step: int = -1
    """The step after which `score` was taken."""
    score: Score | None = None
    trained_s: float = 0.0
    paused_s: float = 0.0
    waited_s: float = 0.0
    epoch_began_s: float = 0.0
    """Seconds trained when the epoch began."""

    def state(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(state: dict[str, Any]) -> Progress:
        return Progress(**{**state, "score": Score(**state["score"]) if state["score"] else None})

    def over(self, span: Span, *, same_run: bool) -> Progress:
        """The same place in a training over `span`. A step means the same images only with the same batch and set:
        with others, only the end of an epoch has a counterpart, and only a new run can count steps anew.
        """
        if (self.batch, self.images_per_epoch) == (span.batch, span.images_per_epoch):
            return self
        epochs, rest = divmod(self.step, -(-self.images_per_epoch // self.batch))
        was, now = (f"{images} images in batches of {batch}" for images, batch in (
            (self.images_per_epoch, self.batch), (span.images_per_epoch, span.batch)))  # fmt: skip
        if same_run:
            raise UsageError(
                f"resume: an epoch was {was}, now it is {now}, so steps would be counted twice over; "
                "go on in a new folder: --run NEW --resume CHECKPOINT"
            )
        if rest:
            raise UsageError(
                f"resume: saved inside an epoch of {was}, now an epoch is {now}; take a checkpoint of an epoch's end"
            )
        return replace(self, step=epochs * span.steps_per_epoch, best_top1=-1.0, best_step=-1, scored_step=-1)
