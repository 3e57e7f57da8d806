from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from shoal.data.augment.draws import POLICY, Draws
from shoal.data.augment.policy import Policy, Round


class RandAugment(Policy, frozen=True, kw_only=True):
    """RandAugment (Cubuk et al. 2019): some of 14 operations, one after another, all of one strength."""

    name: Literal["randaugment"] = "randaugment"
    count: Annotated[int, Meta(ge=1)] = 2
    """Operations per image."""
    magnitude: Annotated[int, Meta(ge=0)] = 9
    """Their strength, of 0 to bins - 1."""
    bins: Annotated[int, Meta(ge=2)] = 31
    """Strengths there are, from nothing to the most."""

    def faults(self) -> list[tuple[str, str]]:
        fits = self.magnitude < self.bins
        return [] if fits else [("magnitude", f"{self.magnitude} is none of 0 to {self.bins - 1} (bins - 1)")]

    def rounds(self, draws: Draws, height: int, width: int) -> Iterator[Round]:
        from shoal.data.augment.operations import NAMES, SIGNED, strengths

        strength = [strengths(name, self.bins, height, width)[self.magnitude] for name in NAMES]
        for number in range(self.count):
            which = draws.whole(len(NAMES), POLICY, number, 0).tolist()
            other = (draws.uniform(POLICY, number, 1) < 0.5).tolist()
            yield [
                (NAMES[one], -strength[one] if turned and NAMES[one] in SIGNED else strength[one])
                for one, turned in zip(which, other, strict=True)
            ]
