"""Spent: where the wall time of a run went, from its events: parts that sum to the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from shoal.base.errors import ShoalError
from shoal.base.run import Run
from shoal.report.sinks import Event

OF_STEPS = ("input", "transfer", "compute", "exchange", "waiting", "update", "other")
"""Parts of steps, as `time` events name them."""
PARTS = ("start-up", *OF_STEPS, "validation", "checkpoint")


@dataclass(frozen=True)
class Slowest:
    """A worker for whom the others waited."""

    rank: int
    last: int
    """Exchanges to which it came last, of `steps`."""
    steps: int
    gain_s: float
    """Seconds by which it was behind the last but one, in all."""
    because: str
    """The part that took it longer than it took the others."""
    made: float = 0.0
    """Of the time its own images take to be made, what the others' take: near 1, all load alike, and while they wait
    for it their own loading goes on unseen. 0 where nobody knows."""


@dataclass(frozen=True)
class Spent:
    """Seconds of one sitting of a run: of a worker on average where workers differ."""

    parts: dict[str, float]
    """Seconds of each of PARTS; they sum to `total_s`."""
    total_s: float
    steps: int
    workers: int
    strategy: str
    batch: int
    images: int
    """Trained on in the steps that were measured."""
    slowest: tuple[Slowest, ...]
    """The workers that held others up, the worst first."""
    eval_s_per_image: float | None
    """Seconds of one worker for the forward pass of a validation image, loading included; None without a validation."""
    least_compute_s: float
    """Computing of the worker that did least: what nobody's fault makes longer."""
    own_s: float
    """Seconds of the instruments themselves, part of `other`."""

    @property
    def hidden(self) -> bool:
        """Whether `compute` holds the exchange, too, and waiting for others: fsdp's go on within the passes."""
        return self.strategy == "fsdp" and self.workers > 1

    @staticmethod
    def of(run: Run) -> Spent:
        """ShoalError where the run has not told of any time."""
        return Spent.of_events(run.read_metrics(), run)

    @staticmethod
    def of_events(events: Sequence[Event], run: Run) -> Spent:
        """As `of`, of events that were read already; `run` is named in errors."""
        begins = [place for place, event in enumerate(events) if event["event"] == "start"]
        if not begins:
            raise ShoalError(f"{run.metrics_file}: no training has reported here yet")
        sitting = events[begins[-1] :]
        times = [event for event in sitting if event["event"] == "time"]
        if not times:
            raise ShoalError(
                f"{run.metrics_file}: tells nothing of where time went yet: a training does with a log line, every 40 "
                "to 500 steps, and when it ends; one that was killed before, or had an older Shoal, never did"
            )
        return _spent(sitting, times)


def _spent(sitting: Sequence[Event], times: list[Event]) -> Spent:
    start, ends = sitting[0], [event for event in sitting if event["event"] == "end"]
    parts: dict[str, float] = {name: sum(event["parts"][name] for event in times) for name in OF_STEPS}
    validations = [event for event in sitting if event["event"] == "val"]
    parts["validation"] = sum(event["seconds"] for event in validations)
    parts["checkpoint"] = sum(event["seconds"] for event in sitting if event["event"] == "save")
    told = sum(parts.values())
    if ends and ends[-1]["first_step_s"] is not None:
        parts["start-up"] = ends[-1]["first_step_s"]
        # What nobody measured: from the last figures to the end of the program.
        total = max(ends[-1]["program_s"], told + parts["start-up"])
        parts["other"] += total - told - parts["start-up"]
    else:
        parts["start-up"], total = 0.0, told
    steps = sum(event["steps"] for event in times)
    seen = sum(event["count"] for event in validations)
    return Spent(
        parts={name: parts[name] for name in PARTS},
        total_s=total,
        steps=steps,
        workers=start["num_ranks"],
        strategy=start["strategy"],
        batch=start["batch"],
        images=min(steps * start["batch"], times[-1]["images"] - start["images"]),
        slowest=_slowest(times),
        eval_s_per_image=parts["validation"] * start["num_ranks"] / seen if seen else None,
        least_compute_s=_least_compute(times, parts["compute"]),
        own_s=times[-1]["own_s"],
    )


def _least_compute(times: list[Event], mean: float) -> float:
    by_rank: Counter[int] = Counter()
    for event in times:
        for row in event["ranks"]:
            by_rank[row["rank"]] += row.get("compute", 0.0)
    return min([mean, *by_rank.values()])


def _slowest(times: list[Event]) -> tuple[Slowest, ...]:
    told = [(event["slowest"], event["slowest"].get("of", event["steps"])) for event in times if event["slowest"]]
    steps = sum(count for _, count in told)
    last: Counter[int] = Counter()
    for event in times:
        for row in event["ranks"]:
            last[row["rank"]] += row.get("last", 0)
    by_rank: dict[int, list[Event]] = {}
    for slowest, _ in told:
        by_rank.setdefault(slowest["rank"], []).append(slowest)
    found = [
        Slowest(
            rank=rank,
            last=last[rank],
            steps=steps,
            gain_s=sum(event["gain_s"] for event in events),
            because=_weightiest(events),
            made=_made(times, rank),
        )
        for rank, events in by_rank.items()
    ]
    return tuple(sorted(found, key=lambda slowest: -slowest.gain_s))


def _made(times: list[Event], rank: int) -> float:
    """Median of the others' seconds over those of `rank`."""
    by_rank: Counter[int] = Counter()
    for event in times:
        for row in event["ranks"]:
            by_rank[row["rank"]] += row.get("made", 0.0)
    own = by_rank.pop(rank, 0.0)
    return median(by_rank.values()) / own if own and by_rank else 0.0


def _weightiest(events: list[Event]) -> str:
    weights: Counter[str] = Counter()
    for event in events:
        weights[event["because"]] += event["gain_s"]
    return weights.most_common(1)[0][0]
