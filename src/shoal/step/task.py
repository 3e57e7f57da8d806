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
    """Options and verbs of every task."""

    SEAM: ClassVar[str] = "tasks"
    unlabelled: ClassVar[bool] = False
    """Whether images without a label are learnt from, too; then its loss has two parts."""

    @abstractmethod
    def loss(self, net: Callable[[Tensor], Tensor], inputs: Tensor, batch: Batch, seed: int) -> tuple[Tensor, Tensor]:
        """inputs [B, C, H, W] as the model takes them -> (loss summed over the batch, logits [B, classes]).

        Randomness is of (seed, batch.step, shard) alone and stays inside each shard of the batch.
        """

    def label_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Of a loss in two parts, that of the labels: summed over the images that have one, before it is weighted."""
        raise NotImplementedError(f"task {self.name}: its loss has one part")

    def without_labels(self, loss: float, label_loss: float) -> float:
        """Of a loss in two parts, the other one, from the whole and `label_loss`."""
        raise NotImplementedError(f"task {self.name}: its loss has one part")
