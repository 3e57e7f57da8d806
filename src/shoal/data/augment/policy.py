"""Policy: operations chosen at random from a table, one after another, of random or fixed strength."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from shoal.data.augment.draws import Draws
from shoal.recipe.part import Part

if TYPE_CHECKING:
    import numpy as np

Round = list[tuple[str, float]]
"""An operation and its strength for each image of a batch."""


class Policy(Part, frozen=True, kw_only=True):
    """Options that every policy has."""

    SEAM: ClassVar[str] = "policies"

    fill: Annotated[int, Meta(ge=0, le=255)] = 0
    """Value of pixels that shears, moves and rotations bring in from outside (the papers have 128)."""
    filter: Literal["nearest", "linear"] = "nearest"
    """How those resample: the nearest pixel, as torchvision does by default, or the nearest four."""

    @abstractmethod
    def rounds(self, draws: Draws, height: int, width: int) -> Iterator[Round]:
        """What is done to each image, one after another; Identity: nothing."""

    def apply(self, images: np.ndarray, draws: Draws) -> np.ndarray:
        """uint8 [B, C, H, W] -> the same shape. Images that the same is done to are treated together."""
        from shoal.data.augment.operations import operated

        for chosen in self.rounds(draws, *images.shape[2:]):
            alike: dict[tuple[str, float], list[int]] = {}
            for place, one in enumerate(chosen):
                alike.setdefault(one, []).append(place)
            for (name, strength), rows in alike.items():
                if name != "Identity":
                    images[rows] = operated(images[rows], name, strength, fill=self.fill, filter=self.filter)
        return images
