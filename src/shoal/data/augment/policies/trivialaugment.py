from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from shoal.data.augment.draws import POLICY, Draws
from shoal.data.augment.policy import Policy, Round


class TrivialAugment(Policy, frozen=True, kw_only=True):
    """TrivialAugment, wide (Müller and Hutter 2021): one of 14 operations, of random strength; nothing to tune."""

    name: Literal["trivialaugment"] = "trivialaugment"
    bins: Annotated[int, Meta(ge=2)] = 31
    """Strengths there are, from nothing to the most."""

    def rounds(self, draws: Draws, height: int, width: int) -> Iterator[Round]:
        from shoal.data.augment.operations import NAMES, SIGNED, strengths

        which = draws.whole(len(NAMES), POLICY, 0).tolist()
        how = draws.whole(self.bins, POLICY, 1).tolist()
        other = (draws.uniform(POLICY, 2) < 0.5).tolist()
        chosen = []
        for one, strength, turned in zip(which, how, other, strict=True):
            name = NAMES[one]
            value = strengths(name, self.bins, height, width, wide=True)[strength]
            chosen.append((name, -value if turned and name in SIGNED else value))
        yield chosen
