"""Why: what held a run back, and what it would gain without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shoal.report.spent import PARTS, Slowest, Spent

Kind = Literal["input", "transfer", "exchange", "straggler", "uneven", "small batch", "validation", "checkpoint"]

_FORWARD_AND_BACKWARD = 3.0
"""Time of a training step in forward passes: the backward pass takes about two."""
_FOR_IMAGES = 1 / 3
"""Of the computing; with less for the images it is the steps themselves that take the time."""
_WORTH_TELLING = 0.05
"""Of the time; less than that is not said to hold anything back."""
_LOADS_ALIKE = 0.75
"""Of the slowest worker's loading; others who take so much of it wait for images themselves, if for nobody else."""
_SAME_WORKER = 0.75
"""Of the exchanges a straggler comes last to; with less, workers are late by turns."""


@dataclass(frozen=True)
class Brake:
    """One thing that holds a run back."""

    kind: Kind
    text: str
    """In plain words, with figures."""
    gain_s: float
    """Seconds of the run's time that would go without it."""
    speed_up: float
    """How many times as fast the training would be, start-up left out."""
    rank: int | None = None
    """The worker whose fault it is; None where it is nobody's alone."""


@dataclass(frozen=True)
class Why:
    """The shares of a run's time and its brakes, the strongest first."""

    spent: Spent
    shares: dict[str, float]
    """Of the whole time; they sum to 1."""
    brakes: tuple[Brake, ...]

    @staticmethod
    def of(spent: Spent) -> Why:
        shares = {name: spent.parts[name] / spent.total_s for name in PARTS}
        trained = spent.total_s - spent.parts["start-up"]
        brakes = [brake for brake in _brakes(spent, trained) if brake.gain_s >= _WORTH_TELLING * trained]
        return Why(spent, shares, tuple(sorted(brakes, key=lambda brake: -brake.gain_s)))

    @property
    def verdict(self) -> str:
        """One sentence: the strongest brake, or that there is none."""
        if self.brakes:
            first = self.brakes[0]
            return f"{first.text}; without it {first.speed_up:.2f} x as fast"
        share = f"{self.shares['compute'] / (1 - self.shares['start-up']):.0%} of the time after the start"
        if self.spent.hidden:
            return f"computing and the exchange within it take {share}; {self.spent.strategy} does not tell them apart"
        return (
            f"computing takes {share} and nothing holds it up: only more workers, a faster device or fewer bits make "
            "it faster"
        )

    @property
    def told(self) -> str:
        """The shares in one line, the largest first."""
        told = sorted(((share, name) for name, share in self.shares.items() if share >= 0.005), reverse=True)
        rest = 1 - sum(share for share, _ in told)
        shares = ", ".join(f"{name} {share:.1%}" for share, name in told)
        if rest >= 0.0005:
            shares += f", the rest {rest:.1%}"
        return shares


def _brakes(spent: Spent, trained: float) -> Iterator[Brake]:
    parts = spent.parts

    def brake(kind: Kind, gain_s: float, text: str, rank: int | None = None) -> Brake:
        gain_s = min(gain_s, 0.99 * trained)
        return Brake(kind, text, gain_s, trained / (trained - gain_s), rank)

    feeding, waited = parts["input"], parts["waiting"]
    if spent.slowest:
        first = spent.slowest[0]
        if first.because == "input" and first.made >= _LOADS_ALIKE:
            feeding += waited  # all would wait for images, if not for one another
        elif _is_straggler(first):
            if first.because == "input":  # his fault alone; on average it was a share of it for each
                feeding = max(feeding - first.gain_s / spent.workers, 0.0)
            yield brake("straggler", first.gain_s, _straggler(first), first.rank)
        else:
            gain = min(waited, sum(slowest.gain_s for slowest in spent.slowest))
            yield brake("uneven", gain, f"workers wait {waited / trained:.0%} of the time for one another, by turns")
    elif waited:
        yield brake("uneven", waited, f"workers wait {waited / trained:.0%} of the time for the last ones")
    yield brake("input", feeding, f"workers stand still {feeding / trained:.0%} of the time for images to be ready")
    yield brake("transfer", parts["transfer"], f"moving images to the device takes {parts['transfer'] / trained:.0%}")
    exchanging = f"exchanging gradients takes {parts['exchange'] / trained:.0%} of the time beyond what computing hides"
    if spent.strategy == "pipeline":
        exchanging = f"stages stand still for one another or hand on {parts['exchange'] / trained:.0%} of the time"
    yield brake("exchange", parts["exchange"], exchanging)
    if (small := _small_batch(spent)) > 0:
        text = (
            f"batches of {spent.batch} are so small that {small / trained:.0%} of the time goes to the steps themselves"
            + ", the exchange included" * spent.hidden
        )
        yield brake("small batch", small, text)
    yield brake("validation", parts["validation"], f"validating takes {parts['validation'] / trained:.0%} of the time")
    yield brake("checkpoint", parts["checkpoint"], f"saving takes {parts['checkpoint'] / trained:.0%} of the time")


def _is_straggler(slowest: Slowest) -> bool:
    return slowest.last >= _SAME_WORKER * slowest.steps


def _straggler(slowest: Slowest) -> str:
    each_ms = 1000 * slowest.gain_s / max(slowest.last, 1)
    return (
        f"worker {slowest.rank} comes last to {slowest.last} of {slowest.steps} exchanges, {each_ms:.3g} ms behind, "
        f"for its {slowest.because}"
    )


def _small_batch(spent: Spent) -> float:
    """Seconds that steps take beyond what their images take in the large batches of the validation; 0 where most of
    the computing is for the images, or nobody knows."""
    if spent.eval_s_per_image is None:
        return 0.0
    needed = _FORWARD_AND_BACKWARD * spent.eval_s_per_image * spent.images / spent.workers
    if needed > _FOR_IMAGES * spent.least_compute_s:
        return 0.0
    # With fewer steps there are fewer exchanges, too. What a straggler computes longer, and has others wait for, stays.
    late = spent.slowest and _is_straggler(spent.slowest[0])
    computing = spent.least_compute_s if late else spent.parts["compute"] + spent.parts["waiting"]
    return computing + sum(spent.parts[name] for name in ("update", "other", "exchange")) - needed
