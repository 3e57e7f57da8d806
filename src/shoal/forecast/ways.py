"""Ways to agree, as far as they cost time: what a strategy adds to one worker's step."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from shoal.base.errors import UsageError
from shoal.base.tree import cover
from shoal.forecast import allreduce, asynchronous, servers
from shoal.forecast.allreduce import Algorithm
from shoal.forecast.calibration import Calibration, Network
from shoal.forecast.step import Cut, Step
from shoal.forecast.stragglers import waiting_s
from shoal.forecast.units import shown_bytes
from shoal.recipe.load import changed, words

KNOWN = ("single", "dp", "ddp", "ps", "local_sgd", "fsdp", "pipeline")
_HALVES = ("fp16", "bf16")
_PIECE = 1 << 24
"""Bytes that are gathered at a time in tree order."""


@dataclass(frozen=True)
class Way:
    """A strategy and how its sums are made."""

    strategy: Any
    algorithm: Algorithm = "ring"

    @staticmethod
    def of(strategy: Any, algorithm: Algorithm = "ring") -> Way:
        """UsageError for a strategy, or an option of it, whose cost is not known here."""
        if strategy.name not in KNOWN:
            raise UsageError(f"strategy {strategy.name}: no cost model for it; known: {', '.join(KNOWN)}")
        compress = getattr(strategy, "compress", "none")
        if compress != "none" and not (strategy.name == "ddp" and compress in _HALVES):
            raise UsageError(
                f"strategy {strategy.name}:compress={compress}: no cost model for it; known: ddp:compress=fp16 and "
                "bf16, which send half the bytes"
            )
        return Way(strategy, algorithm)

    @property
    def name(self) -> str:
        return self.strategy.name

    @property
    def text(self) -> str:
        """As on a command line, with what is not as it is by default."""
        said = words({key: held for key, held in changed(self.strategy).items() if key != "threads"})
        return f"{self.name}:{','.join(said)}" if said else self.name

    @property
    def is_asynchronous(self) -> bool:
        return self.name == "ps" and self.strategy.mode == "async"

    def check(self, workers: int) -> None:
        """UsageError for a number of workers that cannot be."""
        if self.name in ("single", "dp") and workers > 1:
            raise UsageError(f"strategy {self.name} has one worker, not {workers}; add --strategies ddp")

    def stages(self, workers: int) -> int:
        """Pieces that the model is cut into."""
        return (self.strategy.stages or workers) if self.name == "pipeline" else 1

    def replicas(self, workers: int) -> int:
        """Workers, or pipelines of them, among whom a batch is shared out."""
        return workers // self.stages(workers)

    def step(self, cut: Cut, calibration: Calibration, network: Network, between: float = math.inf) -> Step:
        """One step without pauses. The images of a step come while the one before is computed.

        between: steps from one meeting of asynchronous workers to the next.
        """
        if self.is_asynchronous:
            step = self._alone(cut, calibration, network, between)
        else:
            how = {"ps": self._served, "local_sgd": self._seldom, "fsdp": self._scattered, "pipeline": self._in_stages}
            step = how.get(self.name, self._together)(cut, calibration, network)
        step.input = max(0.0, cut.images * calibration.load_image_s - (step.compute + step.exchange))
        return step

    def _computed(self, cut: Cut, calibration: Calibration, network: Network, update_s: float, steps: int = 1) -> Step:
        """What workers do by themselves until they meet after so many steps, and waiting for the slowest."""
        compute = cut.shards * calibration.shard(cut.shard_images) + update_s
        waiting = waiting_s(
            compute, calibration.jitter, cut.workers, times=steps * cut.shards, uneven=calibration.uneven,
            slow=network.slow,
        )  # fmt: skip
        return Step(compute=compute, waiting=waiting)

    def _together(self, cut: Cut, calibration: Calibration, network: Network) -> Step:
        """All-reduce in every step, hidden behind the last shard's backward pass as far as may be."""
        n, size = cut.workers, calibration.gradient_bytes
        step = self._computed(cut, calibration, network, calibration.update_s)
        if n == 1:
            return step
        if self.strategy.deterministic:
            return self._in_order(step, cut, calibration, network)
        halved = 2 if getattr(self.strategy, "compress", "none") in _HALVES else 1
        gradients = allreduce.buckets(calibration.gradients, self.strategy.bucket_mb) or [(size, 1.0)]
        # The small sum of buffers goes before the buckets, when the forward pass is done.
        sent = [(calibration.side_bytes, calibration.forward), *((nbytes / halved, when) for nbytes, when in gradients)]
        last = calibration.shard(cut.shard_images)
        step.exchange = calibration.bucket_s
        step.exchange += allreduce.exposed_s(sent, last, n, calibration, network, self.algorithm)
        if self.strategy.shard_optimizer:  # everybody's part of the weights goes to everybody
            step.exchange += allreduce.all_reduce_s(size, n, calibration, network, self.algorithm) / 2
        step.told = _of_ring(n, size / halved, calibration, network, self.algorithm)
        return step

    def _in_order(self, step: Step, cut: Cut, calibration: Calibration, network: Network) -> Step:
        """Partial sums to everybody, in tree order: a small sum, then gradients and buffers."""
        n, size, side = cut.workers, calibration.gradient_bytes, calibration.side_bytes
        slots = partial_sums(cut.all_shards, n)
        step.exchange = allreduce.all_reduce_s(32, n, calibration, network, self.algorithm)
        for nbytes in (size, side):
            pieces = math.ceil(nbytes / _PIECE)
            step.exchange += allreduce.gather_s(slots * nbytes, n, calibration, network, pieces)
        sent = shown_bytes((n - 1) * slots * size)
        step.told = f"every worker's partial sums to every other, {sent} in each step"
        return step

    def _seldom(self, cut: Cut, calibration: Calibration, network: Network) -> Step:
        """Weights become their mean every so many steps, and buffers with them."""
        every, n = self.strategy.every, cut.workers
        step = self._computed(cut, calibration, network, calibration.update_s, every)
        for nbytes in (calibration.gradient_bytes, calibration.side_bytes):
            step.exchange += allreduce.all_reduce_s(nbytes, n, calibration, network, self.algorithm) / every
        step.told = f"all-reduce of the weights every {every} steps"
        return step

    def _served(self, cut: Cut, calibration: Calibration, network: Network) -> Step:
        """Gradients to the servers, weights back. The update is theirs, and in the time of a byte through them."""
        n = cut.workers
        step = self._computed(cut, calibration, network, 0.0)
        sums = partial_sums(cut.all_shards, n) if self.strategy.deterministic else None
        last = calibration.shard(cut.shard_images)
        step.exchange = servers.sync_s(n, calibration, network, shard_s=last, sums=sums)
        step.told = _of_servers(n, calibration.gradient_bytes, network)
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
        step = self._computed(cut, calibration, network, calibration.update_s)
        if n == 1:
            return step
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
            far = network.per_host % stages != 0  # some pipeline lies on two hosts
            moves = calibration.hop_s
            moves += allreduce.flights(calibration) * network.latency_s if far else 0.0
            moves += wide * cut.shard_images * max(network.byte_s if far else 0.0, calibration.sum_byte_s)
        compute = cut.shards * work + calibration.update_s / stages
        step = Step(compute=compute)
        bubble = shard - work
        late = max(0.0, 2 * moves - work) * (cut.shards + stages - 1)
        part = calibration.gradient_bytes / stages
        summed = allreduce.all_reduce_s(part, pipelines, calibration, _column(network, stages), self.algorithm)
        step.exchange = bubble + late + summed
        step.waiting = waiting_s(
            compute, calibration.jitter, pipelines * stages, times=cut.shards, uneven=calibration.uneven,
            slow=network.slow,
        )  # fmt: skip
        share = bubble / max(step.exchange, 1e-12)
        step.told = f"the pipeline's bubble ({share:.0%} of it), activations, one sum over {pipelines} pipelines"
        return step


@cache
def partial_sums(shards: int, workers: int) -> int:
    """The most that a worker's shards are in tree order, where they do not make one subtree."""
    bounds = [worker * shards // workers for worker in range(workers + 1)]
    return max(len(cover(shards, low, high)) for low, high in itertools.pairwise(bounds))


def _column(network: Network, stages: int) -> Network:
    """The network as those who hold the same stage see it: every stages-th worker. Columns share a host's port."""
    beside = min(network.per_host, stages)
    return msgspec.structs.replace(network, per_host=max(1, network.per_host // stages), byte_s=network.byte_s * beside)


def _of_ring(n: int, size: float, calibration: Calibration, network: Network, algorithm: Algorithm) -> str:
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
