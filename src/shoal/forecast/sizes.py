"""Sizes: what becomes of a recipe at each number of workers: speed, its interval, hours, and what binds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.base.duration import Duration, Span
from shoal.base.errors import UsageError
from shoal.forecast.calibration import Calibration, Network
from shoal.forecast.step import Cut, Step
from shoal.forecast.ways import Way
from shoal.recipe.recipe import Recipe
from shoal.strategies.single import Single

OF_ALL, OF_EXCHANGE, NORMAL_80 = 0.05, 0.30, 1.2816
"""Half-widths of the 80 % interval: of the model as a whole; of exchange and waiting, which it knows less well; and
how many standard deviations of what was measured make 80 %."""


@dataclass(frozen=True)
class Size:
    """The forecast for one number of workers."""

    way: str
    workers: int
    hosts: int
    servers: int
    batch: int
    images_per_s: float
    low: float
    high: float
    """80 % interval of images_per_s."""
    speedup: float
    """Over one worker of the same calibration, which exchanges nothing."""
    step: Step
    hours: float | None
    """The recipe's whole length, validation and checkpoints included; the start left out. None: not known how many
    images an epoch has."""

    @property
    def efficiency(self) -> float:
        return self.speedup / self.workers

    @property
    def machine_hours(self) -> float | None:
        return None if self.hours is None else self.hours * self.hosts

    @property
    def binds(self) -> str:
        """The largest part of a step; images, when all else waits for them."""
        parts = self.step.parts
        return "input" if parts["input"] > 0 else max(parts, key=lambda name: parts[name])


def forecast(
    recipe: Recipe, way: Way, workers: int, calibration: Calibration, network: Network, *, weak: bool = False
) -> Size:
    """weak: every worker has what one has in the recipe; else they share its batch.

    UsageError when the recipe cannot be cut for so many workers.
    """
    batch, shards = cut_for(recipe, way, workers, weak=weak)
    cut = Cut.of(batch, shards, way.replicas(workers), way.stages(workers))
    network = network if way.name == "ps" else _without_servers(network)
    span = Span(calibration.images_per_epoch, batch) if calibration.images_per_epoch else None
    if way.name == "local_sgd" and span is not None:
        way.strategy.check_span(span)
    step = way.step(cut, calibration, network, _between(recipe, span) if span is not None else math.inf)
    if span is not None:
        step.pauses = pauses_s(recipe, span, workers, calibration)
    trained = step.total - step.pauses
    speed = batch / trained
    single = Way(Single())
    alone_batch, alone_shards = cut_for(recipe, single, 1, weak=weak)
    alone = single.step(Cut.of(alone_batch, alone_shards, 1), calibration, _without_servers(network))
    half = _half_width(step, calibration)
    return Size(
        way=way.text,
        workers=workers,
        hosts=network.hosts(workers),
        servers=network.servers if way.name == "ps" else 0,
        batch=batch,
        images_per_s=speed,
        low=speed * math.exp(-half),
        high=speed * math.exp(half),
        speedup=speed / (alone_batch / alone.total),
        step=step,
        hours=recipe.length.steps(span) * step.total / 3600 if span is not None else None,
    )


def cut_for(recipe: Recipe, way: Way, workers: int, *, weak: bool = False) -> tuple[int, int]:
    """(batch, shards) of the whole job. UsageError for a number of workers that cannot be."""
    way.check(workers)
    strategy = way.strategy
    if recipe.norm == "sync" and workers > 1:
        raise UsageError(
            "norm=sync: every normalising layer is summed over the workers in each pass, and what that costs is not "
            "known here; norm=shard or frozen"
        )
    replicas = way.replicas(workers)
    at_once = strategy.at_once(way.stages(workers)) if way.name == "pipeline" else 1
    shards = at_once * recipe.accumulate if recipe.shards == "auto" else recipe.shards
    if weak:
        batch, shards = recipe.batch_for(1) * replicas, shards * replicas
    else:
        batch, shards = recipe.batch_for(workers), shards * (replicas if recipe.shards == "auto" else 1)
    if way.name == "pipeline":
        strategy.check(workers, 0, shards)
    if replicas > shards:
        raise UsageError(
            f"{workers} workers for {shards} shards: a worker takes whole shards; use at most {shards} workers, "
            "--weak (every worker computes what one does in the recipe), or shards=auto (another model)"
        )
    if shards > batch:
        raise UsageError(
            f"{workers} workers for a batch of {batch} images; use at most {batch} workers, --weak, or a larger batch"
        )
    return batch, shards


def pauses_s(recipe: Recipe, span: Span, workers: int, calibration: Calibration) -> float:
    """Validation (shared out among the workers in whole chunks) and checkpoints, in seconds a step."""
    chunk: int = recipe.data.eval_batch  # type: ignore[attr-defined]
    chunks = -(-calibration.val_images // chunk)
    validation = min(calibration.val_images, -(-chunks // workers) * chunk) * calibration.eval_image_s
    return validation * _often(recipe.eval_every, span) + calibration.save_s * _often(recipe.save_every, span)


def _often(period: Duration, span: Span) -> float:
    """Times in one step."""
    images = float(period.images(span))
    return min(1.0, span.batch / images) if images else 0.0


def _between(recipe: Recipe, span: Span) -> float:
    """Steps from one meeting of asynchronous workers to the next: an epoch's end, a validation, a checkpoint."""
    return 1 / max(_often(recipe.eval_every, span), _often(recipe.save_every, span), 1 / span.steps_per_epoch)


def _without_servers(network: Network) -> Network:
    return Network(
        byte_s=network.byte_s, latency_s=network.latency_s, per_host=network.per_host, servers=0, slow=network.slow
    )


def _half_width(step: Step, calibration: Calibration) -> float:
    """Of the logarithm of the speed."""
    unsure = (step.exchange + step.waiting) / max(step.total - step.pauses, 1e-12)
    return math.hypot(NORMAL_80 * calibration.spread, OF_ALL, OF_EXCHANGE * unsure)
