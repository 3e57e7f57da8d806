"""Intake: how fast images come, stage by stage, against how fast a model takes them; in words, and as a picture."""

from __future__ import annotations

import io
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.base.files import write_whole

BATCHES = "in batches"
"""The stage at which a training takes them."""
KEPT = 0.95
"""Part of the model's own speed below which a training is called input-bound."""


@dataclass(frozen=True)
class Intake:
    """Images/s, in several turns each."""

    rates: Mapping[tuple[str, int], tuple[float, ...]]
    """(stage, threads) -> of each turn. A stage is what has become of images, its rate that of the whole way there."""
    model: tuple[float, ...]
    """Of the model alone on one batch, again and again; of each turn."""
    threads: int
    """data.threads of the recipe."""
    model_threads: int
    """Cores that the model keeps busy."""
    cores: int

    @property
    def tried(self) -> tuple[int, ...]:
        return tuple(sorted({threads for _, threads in self.rates}))

    @property
    def stages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(stage for stage, _ in self.rates))

    def rate(self, stage: str, threads: int) -> float:
        """The median of the turns."""
        return statistics.median(self.rates[stage, threads])

    @property
    def need(self) -> float:
        """What the model could take, images/s."""
        return statistics.median(self.model)

    def kept(self, threads: int) -> float:
        """Part of the model's own speed that is left with so many threads for input: they must bring enough, and share
        the cores with it."""
        image_s = 1 / self.rate(BATCHES, self.tried[0]) * self.tried[0]
        shared = self.cores / (self.need * image_s + self.model_threads)
        return min(1.0, self.rate(BATCHES, threads) / self.need, shared)

    @property
    def bound(self) -> bool:
        """Whether input holds the training back."""
        return self.kept(self.threads) < KEPT

    @property
    def verdict(self) -> str:
        """One sentence, and what would help."""
        kept = self.kept(self.threads)
        said = (
            f"the model takes {self.need:,.0f} images/s, data.threads={self.threads} bring "
            f"{self.rate(BATCHES, self.threads):,.0f}: {100 * kept:.0f} % of its speed is left"
        )
        if not self.bound:
            return f"not input-bound: {said}"
        best = max(self.tried, key=self.kept)
        if self.kept(best) > 1.02 * kept:
            return f"input-bound: {said}; data.threads={best} would leave {100 * self.kept(best):.0f} %"
        return f"input-bound: {said}, and more threads do not help here; smaller images would, packed beforehand"

    def plain(self) -> dict[str, object]:
        """For JSON."""
        rows = [
            {"stage": stage, "threads": threads, "images_per_s": self.rate(stage, threads), "turns": turns}
            for (stage, threads), turns in self.rates.items()
        ]
        return {
            "rates": rows,
            "model_images_per_s": self.need,
            "model_turns": self.model,
            "threads": self.threads,
            "model_threads": self.model_threads,
            "cores": self.cores,
            "kept": self.kept(self.threads),
            "input_bound": self.bound,
            "verdict": self.verdict,
        }

    def text(self) -> str:
        """A row per stage, a column per number of threads, and the verdict."""
        from shoal.report.tables import table

        rows = [(stage, *(_spread(self.rates[stage, threads]) for threads in self.tried)) for stage in self.stages]
        header = ("images/s", *(f"{threads} thread{'s' if threads > 1 else ''}" for threads in self.tried))
        turns = f"medians of {len(self.model)} turns, smallest to largest"
        model = f"the model alone: {_spread(self.model)} images/s ({self.model_threads} of {self.cores} cores)"
        return "\n".join([table(rows, header), "", model, turns, "", self.verdict])

    def picture(self, path: Path, title: str) -> None:
        """Bars of each stage and the line of what the model takes (PNG)."""
        from matplotlib.figure import Figure  # without pyplot: no window system, no global state

        figure = Figure(figsize=(8, 4.8), dpi=110, layout="constrained")
        axes = figure.subplots()
        wide = 0.8 / len(self.tried)
        for number, threads in enumerate(self.tried):
            middle = [self.rate(stage, threads) for stage in self.stages]
            ends = [(min(self.rates[stage, threads]), max(self.rates[stage, threads])) for stage in self.stages]
            errors = [
                [rate - low for rate, (low, _) in zip(middle, ends, strict=True)],
                [high - rate for rate, (_, high) in zip(middle, ends, strict=True)],
            ]
            places = [place + wide * (number - (len(self.tried) - 1) / 2) for place in range(len(self.stages))]
            axes.bar(places, middle, wide, yerr=errors, label=f"{threads} thread{'s' if threads > 1 else ''}")
        axes.axhline(self.need, color="#777777", linestyle="--", label="what the model takes")
        axes.set_xticks(range(len(self.stages)), self.stages)
        axes.set(title=title, ylabel=f"images/s (n = {len(self.model)} turns)", yscale="log")
        axes.grid(axis="y", alpha=0.3)
        axes.legend()
        file = io.BytesIO()
        figure.savefig(file, format="png")
        write_whole(path, file.getvalue())


def _spread(rates: tuple[float, ...]) -> str:
    return f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
