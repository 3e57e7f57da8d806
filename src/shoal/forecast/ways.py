"""Ways to agree, as far as they cost time: the recipe's strategy, or one that is only reckoned here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from shoal.base.errors import UsageError, did_you_mean
from shoal.forecast import allreduce, asynchronous, servers
from shoal.forecast.allreduce import Algorithm
from shoal.forecast.calibration import Calibration, Network
from shoal.forecast.stragglers import waiting_s
from shoal.forecast.units import shown_bytes
from shoal.recipe.load import short_form

RECKONED: dict[str, dict[str, int]] = {"local_sgd": {"every": 16}}
"""Ways that need no recipe of that strategy, with their options."""


KNOWN = ("single", "dp", "ddp", "ps", "local_sgd", "fsdp", "pipeline")


@dataclass(frozen=True)
class Cut:
    """What the busiest worker, or pipeline of workers, computes in a step."""

    batch: int
    """Images of the whole job."""
    shards: int
    """Of this worker, one after another."""
    shard_images: float
    workers: int
    """Or pipelines."""
    stages: int = 1
    """Workers of a pipeline."""

    @staticmethod
    def of(batch: int, shards: int, workers: int, stages: int = 1) -> Cut:
        return Cut(batch, -(-shards // workers), batch / shards, workers, stages)

    @property
    def images(self) -> float:
        return self.shards * self.shard_images


@dataclass
class Step:
    """Where the seconds of one step of the whole job go. They add up to `total`."""

    compute: float = 0.0
    """Forward and backward passes, the update."""
    exchange: float = 0.0
    """Gradients or weights on their way, as far as nothing else was done meanwhile."""
    waiting: float = 0.0
    """For the slowest worker."""
    input: float = 0.0
    """For images."""
    pauses: float = 0.0
    """Validation and checkpoints, shared out among the steps."""
    told: str = ""
    """What the exchange consists of, in words."""
    staleness: float | None = None

    @property
    def total(self) -> float:
        return self.compute + self.exchange + self.waiting + self.input + self.pauses

    @property
    def parts(self) -> dict[str, float]:
        names = ("compute", "exchange", "waiting", "input", "pauses")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Way:
    """A strategy's name and those of its options that cost time."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    algorithm: Algorithm = "ring"

    @property
    def text(self) -> str:
        shown = {
            key: value for key, value in self.options.items() if key in SHOWN and value not in (None, False, "sync")
        }
        pairs = ",".join(f"{key}={value}" for key, value in shown.items())
        return f"{self.name}:{pairs}" if pairs else self.name

    @staticmethod
    def of_recipe(strategy: Any, algorithm: Algorithm) -> Way:
        """UsageError for a strategy whose exchange is not known here."""
        names = ("mode", "bucket_mb", "deterministic", "every", "stages", "microbatches")
        options = {name: getattr(strategy, name) for name in names if hasattr(strategy, name)}
        if strategy.name not in KNOWN:
            raise UsageError(f"strategy {strategy.name}: no cost model for it; {_known()}")
        return Way(strategy.name, {**RECKONED.get(strategy.name, {}), **options}, algorithm)

    @staticmethod
    def reckoned(text: str, algorithm: Algorithm) -> Way | None:
        """`local_sgd:every=8`; None for what recipes know themselves."""
        name, options = short_form(text)
        if name not in RECKONED:
            return None
        known = RECKONED[name]
        for key, value in options.items():
            if key not in known:
                raise UsageError(f"--strategies {text}: {name} has no option '{key}'{did_you_mean(key, known)}")
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"--strategies {text}: {key} must be a whole number from 1 on")
        return Way(name, {**known, **options}, algorithm)

    @property
    def is_asynchronous(self) -> bool:
        return self.name == "ps" and self.options.get("mode") == "async"

    def check(self, workers: int) -> None:
        """UsageError for a number of workers that cannot be."""
        if self.name in ("single", "dp") and workers > 1:
            raise UsageError(f"strategy {self.name} has one worker, not {workers}; add --strategies ddp")

    def stages(self, workers: int) -> int:
        """Pieces that the model is cut into."""
        return (self.options.get("stages") or workers) if self.name == "pipeline" else 1

    def replicas(self, workers: int) -> int:
        """Workers, or pipelines of them, among whom a batch is shared out."""
        return workers // self.stages(workers)

    def step(self, cut: Cut, calibration: Calibration, network: Network, between: float = math.inf) -> Step:
        """One step without pauses. The images of a step come while the one before is computed.

        between: steps from one meeting of asynchronous workers to the next.
        """
        if self.is_asynchronous:
            step = self._alone(cut, calibration, network, between)
        elif self.name == "pipeline":
            step = self._in_stages(cut, calibration, network)
        elif self.name == "fsdp" and cut.workers > 1:
            step = self._scattered(cut, calibration, network)
        else:
            step = self._together(cut, calibration, network)
        step.input = max(0.0, cut.images * calibration.load_image_s - (step.compute + step.exchange))
        return step

    def _together(self, cut: Cut, calibration: Calibration, network: Network) -> Step:
        shard, n = calibration.shard(cut.shard_images), cut.workers
        step = Step(compute=cut.shards * shard + calibration.update_s)
        every = self.options["every"] if self.name == "local_sgd" else 1
        step.waiting = waiting_s(step.compute, calibration.jitter, n, steps=every, slow=network.slow)
        if n == 1 and self.name != "ps":
            return step
        size = calibration.gradient_bytes
        if self.name == "ps":
            step.exchange = servers.sync_s(n, calibration, network)
            step.told = _of_servers(n, size, network)
        elif self.options.get("deterministic"):
            step.exchange = allreduce.gather_s(size + calibration.side_bytes, n, calibration, network)
            step.told = f"every worker's partial sums to every other, {shown_bytes((n - 1) * size)} in each step"
        elif self.name == "local_sgd":
            step.exchange = allreduce.all_reduce_s(size, n, calibration, network, self.algorithm) / every
            step.told = f"all-reduce of the weights every {every} steps"
        else:
            side = allreduce.all_reduce_s(calibration.side_bytes, n, calibration, network, self.algorithm)
            sent = allreduce.buckets(calibration.gradients, self.options.get("bucket_mb")) or [(size, 1.0)]
            # The small sum of buffers goes before the buckets, while the backward pass has begun.
            late = allreduce.exposed_s(sent, shard, n, calibration, network, self.algorithm)
            step.exchange = late + max(0.0, side - shard / 2)
            step.told = _of_ring(n, size, calibration, network, self.algorithm)
        return step

    def _alone(self, cut: Cut, calibration: Calibration, network: Network, between: float) -> Step:
        shards = cut.batch / cut.shard_images
        played = asynchronous.play(cut.shard_images, cut.workers, calibration, network, between=between * shards)
        shard_s = shards / cut.workers  # of a step, for each second of a worker's for a shard
        compute, waiting = shard_s * played.compute_s, shard_s * played.waiting_s
        told = _of_servers(cut.workers, calibration.gradient_bytes, network) + " for each shard"
        exchange = shard_s * played.cycle_s - compute - waiting
        return Step(compute=compute, exchange=exchange, waiting=waiting, told=told, staleness=played.staleness)

    def _scattered(self, cut: Cut, calibration: Calibration, network: Network) -> Step:
        """Every pass gathers the parameters twice and adds the gradients once, block by block. A GPU gathers the next
        block while it computes with one; on CPUs each waits for its own."""
        shard, n = calibration.shard(cut.shard_images), cut.workers
        step = Step(compute=cut.shards * shard + calibration.update_s)
        step.waiting = waiting_s(step.compute, calibration.jitter, n, slow=network.slow)
        moved = allreduce.scattered_s(calibration.gradient_bytes, calibration.blocks, n, calibration, network)
        first = moved / 3 / calibration.blocks
        late = moved if calibration.device == "cpu" else max(moved - shard, first)
        side = allreduce.all_reduce_s(calibration.side_bytes, n, calibration, network, self.algorithm)
        step.exchange = cut.shards * late + side
        sent = shown_bytes(3 * cut.shards * (n - 1) / n * calibration.gradient_bytes)
        step.told = f"parameters gathered twice, gradients added once for each shard, {sent} from each worker"
        return step

    def _in_stages(self, cut: Cut, calibration: Calibration, network: Network) -> Step:
        """The first shard passes all stages, there and back; every other ends when the slowest has done it, too. Then
        each stage's gradients are added over the pipelines."""
        stages, pipelines = cut.stages, cut.workers
        shard = calibration.shard(cut.shard_images)
        slowest, wide = calibration.stages(stages)
        work = slowest * shard
        # Activations go on and their gradients come back in every slot, both ways of a port at once.
        moves = 0.0
        if stages > 1:
            moves = network.latency_s + calibration.hop_s
            moves += wide * cut.shard_images * max(network.byte_s, calibration.sum_byte_s)
        compute = cut.shards * work + calibration.update_s / stages
        step = Step(compute=compute)
        bubble = shard - work
        late = max(0.0, 2 * moves - work) * (cut.shards + stages - 1)
        part = calibration.gradient_bytes / stages
        summed = allreduce.all_reduce_s(part, pipelines, calibration, network, self.algorithm)
        step.exchange = bubble + late + summed
        step.waiting = waiting_s(compute, calibration.jitter, pipelines * stages, slow=network.slow)
        share = bubble / max(step.exchange, 1e-12)
        step.told = f"the pipeline's bubble ({share:.0%} of it), activations, one sum over {pipelines} pipelines"
        return step


SHOWN = ("mode", "deterministic", "every", "stages", "microbatches")


def _of_ring(n: int, size: int, calibration: Calibration, network: Network, algorithm: Algorithm) -> str:
    whole = allreduce.all_reduce_s(size, n, calibration, network, algorithm)
    latency = allreduce.all_reduce_s(1e-9, n, calibration, network, algorithm)
    of = "latency" if latency > whole / 2 else "bandwidth"
    moved = shown_bytes(2 * (n - 1) / n * size)
    return (
        f"{algorithm} all-reduce, {moved} through each host's port and "
        f"{allreduce.hops(n, algorithm):,} messages one after another; mostly {of}"
    )


def _of_servers(n: int, size: int, network: Network) -> str:
    ports = servers.Ports.of(n, network)
    count = f"{network.servers} server{'s' if network.servers > 1 else ''}"
    return f"{shown_bytes(ports.wire * size)} each way through the busiest port, {count}"


def _known() -> str:
    return f"known: {', '.join(KNOWN)}"
