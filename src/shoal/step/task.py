"""Task: how a batch becomes a loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from shoal.recipe.part import Part

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.data.batches import Batch


class Task(Part, frozen=True, kw_only=True):
    """Options and verb of every task."""

    SEAM: ClassVar[str] = "tasks"

    @abstractmethod
    def loss(self, net: Callable[[Tensor], Tensor], inputs: Tensor, batch: Batch, seed: int) -> tuple[Tensor, Tensor]:
        """inputs [B, C, H, W] as the model takes them -> (loss summed over the batch, logits [B, classes]).

        Randomness is of (seed, batch.step, shard) alone and stays inside each shard of the batch.
        """


class TwoPartTask(Task, frozen=True, kw_only=True):
    """One whose loss has a part that needs no labels, so that images without one are learnt from, too."""

    @abstractmethod
    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The part of the labels: summed over the images that have one, before it is weighted."""

    @abstractmethod
    def without_labels(self, loss: float, label_loss: float) -> float:
        """The other part, from the whole and `label_loss`."""
