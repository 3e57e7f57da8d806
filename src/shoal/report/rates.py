"""Rates: what a sweep over learning rates saw, what it suggests, and its picture."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shoal.base.files import write_whole

_KEEP = 0.9
"""Part of the smoothed loss that a step leaves."""
WORSE = 2.0
"""Times the first loss: what counts as diverged (the loss of a guess is the logarithm of the classes)."""


@dataclass(frozen=True)
class Curve:
    """One seed's losses, each of the step made at the rate of the same place; rates rise by the same factor."""

    seed: int
    rates: tuple[float, ...]
    losses: tuple[float, ...]
    """Mean per image; as many as steps were made before it diverged."""

    @cached_property
    def smoothed(self) -> tuple[float, ...]:
        """Means of the losses so far, later ones counting more, without the pull of a start at zero."""
        mean, weight, found = 0.0, 1.0, []
        for loss in self.losses:
            mean, weight = _KEEP * mean + (1 - _KEEP) * loss, weight * _KEEP
            found.append(mean / (1 - weight))
        return tuple(found)

    @property
    def lowest(self) -> float:
        """The rate at which the smoothed loss is least."""
        return self.rates[min(range(len(self.smoothed)), key=self.smoothed.__getitem__)]

    @property
    def steepest(self) -> float:
        """The rate in the middle of the stretch of a tenth of all rates in which the smoothed loss falls most, before
        it is least."""
        last, wide = self.rates.index(self.lowest), max(2, len(self.rates) // 10)
        falls = [before - after for before, after in zip(self.smoothed, self.smoothed[wide : last + 1], strict=False)]
        return self.rates[falls.index(max(falls)) + wide // 2] if falls else self.lowest

    @property
    def diverged(self) -> float | None:
        """The first rate at which it did, if it did; a loss that was never finite tells nothing of rates."""
        return self.rates[len(self.losses)] if 0 < len(self.losses) < len(self.rates) else None


def diverges(loss: float, first: float) -> bool:
    return not math.isfinite(loss) or loss > WORSE * first


@dataclass(frozen=True)
class Rates:
    """The curves of several seeds."""

    curves: tuple[Curve, ...]

    @property
    def suggested(self) -> float:
        """Between where the loss falls fastest and where it is least: their geometric mean, the median over seeds."""
        return statistics.median(math.sqrt(curve.steepest * curve.lowest) for curve in self.curves)

    @property
    def fault(self) -> str | None:
        """Why nothing is suggested."""
        if not all(curve.losses for curve in self.curves):
            return "the loss is not finite before the first step, at whatever rate; look at the data and at precision"
        if any(len(curve.losses) < 2 for curve in self.curves):
            return "it diverged at the first rates; begin lower, with --from"
        if all(curve.lowest == curve.rates[-1] for curve in self.curves):
            return "the loss still fell at the highest rate; end higher, with --to"
        first = statistics.median(curve.smoothed[0] for curve in self.curves)
        if statistics.median(min(curve.smoothed) for curve in self.curves) > 0.95 * first:
            return "the loss hardly fell at any rate; take more --steps"
        return None

    def plain(self) -> dict[str, object]:
        """For JSON."""
        return {
            "suggested": None if self.fault else self.suggested,
            "fault": self.fault,
            "curves": [
                {
                    "seed": curve.seed,
                    "rates": curve.rates[: len(curve.losses)],
                    "losses": curve.losses,
                    "steepest": curve.steepest if curve.losses else None,
                    "lowest": curve.lowest if curve.losses else None,
                    "diverged": curve.diverged,
                }
                for curve in self.curves
            ],
        }

    def text(self) -> str:
        """A row for each figure: its median over seeds, and its ends."""
        held = [curve for curve in self.curves if curve.losses]
        ends = [curve.diverged for curve in self.curves if curve.diverged is not None]
        rows = [("suggested", (self.fault and f"none: {self.fault}") or f"optim.lr={self.suggested:.2g}")]
        if held:
            rows[:0] = [
                ("falls fastest at", _spread([curve.steepest for curve in held])),
                ("is least at", _spread([curve.lowest for curve in held])),
                ("diverges at", _spread(ends) if ends else "no rate tried"),
            ]
        return "\n".join(f"{name:18}{told}" for name, told in rows)

    def picture(self, path: Path, title: str) -> None:
        """Draws the curves (PNG)."""
        from matplotlib.figure import Figure  # without pyplot: no window system, no global state

        figure = Figure(figsize=(8, 4.8), dpi=110, layout="constrained")
        axes = figure.subplots()
        for curve in self.curves:
            rates = curve.rates[: len(curve.losses)]
            (line,) = axes.plot(rates, curve.smoothed, label=f"seed {curve.seed}, smoothed")
            axes.plot(rates, curve.losses, ".", color=line.get_color(), alpha=0.3, markersize=4)
        if self.fault is None:
            axes.axvline(self.suggested, color="#777777", linestyle="--", label=f"suggested: {self.suggested:.2g}")
        axes.set(
            xscale="log", title=title, xlabel="optim.lr, rising with every step", ylabel="mean loss per image (nats)"
        )
        axes.grid(alpha=0.3)
        axes.legend()
        file = io.BytesIO()
        figure.savefig(file, format="png")
        write_whole(path, file.getvalue())


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2g}  ({min(values):.2g} to {max(values):.2g}, n = {len(values)} seeds)"
