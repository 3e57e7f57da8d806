"""Member: one of the processes that compute at the same time, as the workers of a host do."""

from __future__ import annotations

import datetime
import itertools
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from shoal.forecast.calibration import Calibration
from shoal.forecast.probing.anatomy import layers, readiness, size
from shoal.forecast.probing.exchange import Costs, gloo, servers
from shoal.forecast.probing.loop import Loop
from shoal.forecast.probing.task import Task
from shoal.recipe.recipe import Recipe
from shoal.train.allocator import keep_memory
from shoal.train.setup import Data

BLOCKS = 4
_FEW = 4
"""Images with which the layers are timed: their shares of the time hold for more."""


class Member:
    """One of the processes that compute."""

    def __init__(self, folder: Path, task: Task, recipe: Recipe, data: Data, rank: int) -> None:
        self.folder, self.task, self.recipe, self.data, self.rank = folder, task, recipe, data, rank
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", rank % torch.cuda.device_count()) if self.cuda else torch.device("cpu")
        self.busy = rank < task.together
        keep_memory()
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder / 'store'}",
            rank=rank,
            world_size=task.processes,
            timeout=datetime.timedelta(seconds=task.limit_s),
        )

    def measure(self) -> Calibration:
        steps: dict[int, list[list[tuple[float, float]]]] = {images: [] for images in self._sizes()}
        extra: dict[str, Any] = {}
        if self.busy:
            loops = {images: Loop(self.recipe, self.data, images, self.device) for images in steps}
            for loop in loops.values():
                loop.warm(self.task.compute_s / 8)
        dist.barrier()
        for _ in range(BLOCKS):
            for images, blocks in steps.items():
                if self.busy:
                    blocks.append(loops[images].run(self.task.compute_s / BLOCKS / len(steps)))
                dist.barrier()
        if self.busy:
            extra = self._beside(loops[max(loops)], min(1.0, self.task.compute_s / 8))
        dist.barrier()
        exchange = gloo(self.rank)
        served = servers(self.folder, self.task, self.rank) if self.task.servers else (0.0, 0.0, 0.0)
        told: list[Any] = [None] * self.task.processes
        dist.all_gather_object(told, (steps, extra) if self.busy else None)
        dist.destroy_process_group()
        return self._together([one for one in told if one is not None], exchange, served)

    def _sizes(self) -> list[int]:
        """Sizes of shards to measure: as asked, but none of which a step would take too long."""
        most = torch.tensor([max(self.task.shard_images)])
        if self.rank == 0:
            loop = Loop(self.recipe, self.data, 2, self.device)  # one image alone has no statistics
            loop.step()
            seconds = min(sum(loop.step()) for _ in range(2))
            most[0] = max(2, min(int(most), int(self.task.compute_s / BLOCKS / 4 / seconds * 2)))
            loop.close()
        dist.broadcast(most, src=0)
        return sorted({max(2, min(images, int(most))) for images in self.task.shard_images})

    def _beside(self, loop: Loop, budget_s: float) -> dict[str, Any]:
        """What is measured after the blocks, in all busy processes at once."""
        gradients, forward = readiness(loop.rig.model, loop.both, then=loop.end)
        return {
            "gradients": gradients,
            "forward": forward,
            "bucket_s": self._of_buckets(loop, 2 * budget_s),
            "layers": layers(loop.rig.model, loop.inputs(_FEW)),
            "load_image_s": loop.load(budget_s),
            "eval_image_s": loop.evaluate(budget_s),
            "save_s": loop.save(self.folder / f"checkpoint-{self.rank}"),
        }

    def _of_buckets(self, loop: Loop, budget_s: float) -> float:
        """Seconds that DistributedDataParallel adds to both passes, where there is nobody to exchange with: by turns
        with and without it, for a machine changes. 0 on a GPU, whose gradients gloo would carry to the host first."""
        if self.cuda:
            return 0.0
        other = Loop(self.recipe, self.data, loop.images, self.device, bucketing=True)
        other.warm(budget_s / 8)
        differences: list[float] = []
        until = time.perf_counter() + budget_s
        while len(differences) < _FEW or time.perf_counter() < until:
            differences.append(other.step()[0] - loop.step()[0])
        other.close()
        return max(0.0, statistics.median(differences))

    def _together(self, told: list[Any], exchange: Costs, served: tuple[float, ...]) -> Calibration:
        sizes = sorted(told[0][0])
        shard = {b: statistics.fmean(t for steps, _ in told for block in steps[b] for t, _ in block) for b in sizes}
        update = statistics.fmean(
            t for steps, _ in told for blocks in steps.values() for block in blocks for _, t in block
        )
        small, large = sizes[0], sizes[-1]
        image_s = most = shard[large] / large
        if shard[large] > shard[small]:  # else others disturbed it: more images do not take less time
            image_s = min(most, (shard[large] - shard[small]) / (large - small))
        blocks = [_mean_step(block) for steps, _ in told for block in steps[large]]
        extra = {key: [one[key] for _, one in told] for key in told[0][1]}
        mean = {
            key: statistics.fmean(extra[key])
            for key in ("forward", "bucket_s", "load_image_s", "eval_image_s", "save_s")
        }
        return msgspec.structs.replace(
            size(self.recipe, self.data),
            device=self.device.type,
            gradients=extra["gradients"][0],
            layers=extra["layers"][0],
            shard_s=max(0.0, shard[large] - image_s * large),
            image_s=image_s,
            measured_images=large,
            update_s=update,
            jitter=statistics.fmean(_jitter([t for block in steps[large] for t, _ in block]) for steps, _ in told),
            uneven=_uneven([[_mean_step(block) for block in steps[large]] for steps, _ in told]),
            spread=statistics.stdev(blocks) / statistics.fmean(blocks),
            hop_s=exchange.hop_s,
            sum_byte_s=exchange.byte_s,
            core_hop_s=exchange.core_hop_s,
            core_byte_s=exchange.core_byte_s,
            call_s=served[0],
            serve_byte_s=served[1],
            share_byte_s=served[2],
            **mean,
        )


def _mean_step(block: list[tuple[float, float]]) -> float:
    return statistics.fmean(sum(step) for step in block)


def _uneven(blocks: list[list[float]]) -> float:
    """blocks: mean steps [member][block], of blocks that all did at the same time -> how much longer than the mean of
    all the slowest took."""
    return statistics.fmean(max(one) / statistics.fmean(one) - 1 for one in zip(*blocks, strict=True))


def _jitter(times: list[float]) -> float:
    """Standard deviation / mean from the differences of neighbours: what drifts slowly is no jitter."""
    if len(times) < 2:
        return 0.0
    differences = [abs(a - b) for a, b in itertools.pairwise(times)]
    return statistics.fmean(differences) * math.sqrt(math.pi) / 2 / statistics.fmean(times)
