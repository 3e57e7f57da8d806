"""Scaler: the factor of a loss that keeps small float16 gradients from vanishing, and when steps are skipped for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MOST_SKIPS = 20
"""Steps skipped in a row after which training has plainly failed."""
MOST = 2.0**24
"""Above it float32 gradients lose nothing that float16 could have kept, and overflow soon (Apex's limit)."""


@dataclass
class Scaler:
    """Equal on all workers, because all see the same sum of gradients. Without options: a scale of 1 for ever."""

    scale: float = 1.0
    """What the loss is multiplied with now; gradients are divided by it before anybody else sees them."""
    dynamic: bool = False
    """Halve it when a gradient overflows, double it after `growth_steps` steps that did not, up to MOST."""
    growth_steps: int = 2000
    clean: int = 0
    """Steps since the scale last changed, or a step was last skipped."""
    in_row: int = 0
    """Steps skipped without one in between that was not."""
    skipped: int = 0
    """Steps skipped in all."""

    @property
    def told(self) -> bool:
        """Whether there is a scale worth telling of."""
        return self.dynamic or self.scale != 1

    def stepped(self) -> None:
        """A step was made."""
        self.in_row = 0
        self.clean += 1
        if self.dynamic and self.clean >= self.growth_steps:
            self.scale, self.clean = min(self.scale * 2, MOST), 0

    @property
    def exhausted(self) -> str | None:
        """Why one more skip is too many; None while it is not."""
        if self.dynamic and self.scale / 2 < 1:
            return f"the loss scale of {self.scale:g} cannot be halved again"
        return f"{self.in_row + 1} steps in a row were skipped" if self.in_row + 1 >= MOST_SKIPS else None

    def overflowed(self) -> None:
        """A step was skipped."""
        self.in_row, self.skipped, self.clean = self.in_row + 1, self.skipped + 1, 0
        if self.dynamic:
            self.scale /= 2

    def state(self) -> dict[str, Any]:
        """For checkpoints."""
        return {key: getattr(self, key) for key in ("scale", "dynamic", "clean", "in_row", "skipped")}

    def load(self, state: dict[str, Any]) -> None:
        """Goes on from a state of any scaler: the scale itself only where both move it."""
        self.skipped, self.in_row = state["skipped"], state["in_row"]
        if self.dynamic and state["dynamic"]:
            self.scale, self.clean = min(state["scale"], MOST), state["clean"]
