"""Pipelines: what two workers make of a ResNet-50 against one process with as many threads, and the time waited away.

bench_pipeline.py [bubble] [resnet] [--pairs 3] [--size 96]

The bubble is measured with a model whose layers take a fixed time each and no processor, so that other work on the
machine counts for little: what a step takes, less what the layers of a stage take in it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from typing import Any

from pairs import compare, events, finish, machine, verdict

LAYER_S = 0.02
"""What a timed layer takes forward; backward twice that."""
LAYERS = 4
"""Of each stage."""
RESNET = (
    "imagenet-resnet50", "data=synthetic", "data.classes=1000", "data.channels=3", "precision=fp32", "batch=64",
    "shards=16", "length=5st", "log_every=1st", "model.channels_last=true",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=["bubble", "resnet"])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--size", type=int, default=96)
    options = parser.parse_args()
    print(machine(), flush=True)
    if "bubble" in options.parts:
        bubbles()
    if "resnet" in options.parts:
        resnet(options.size, options.pairs)
    finish()


def resnet(size: int, pairs: int) -> None:
    data = (f"data.size={size}", "data.images=320")

    def rate(*words: str) -> float:
        """Images per second: the median over steps but the first."""
        told = [event["images_per_s"] for event in events(*RESNET, *data, *words) if event["event"] == "train"]
        return statistics.median(told[1:])

    piped, whole, ratio, least, most = compare(
        lambda: rate("strategy=pipeline:threads=1", "-n", "2"), lambda: rate("strategy=single:threads=2"), pairs
    )
    print(f"ResNet-50, {size} px, batch 64 in 16 shards: 2 workers of 1 thread {piped:.1f}, 1 of 2 {whole:.1f}")
    told = f"images/s, pipeline / one process; {least:.2f} to {most:.2f}, n = {pairs} pairs"
    verdict(told, ratio, ">= 0.8", ratio >= 0.8)


def bubbles() -> None:
    context = multiprocessing.get_context("spawn")
    for schedule in ("1f1b", "gpipe"):
        for count in (2, 4, 8):
            with tempfile.TemporaryDirectory() as folder:
                queue: Any = context.Queue()
                ranks = [context.Process(target=stage, args=(rank, count, schedule, folder, queue)) for rank in (0, 1)]
                for rank in ranks:
                    rank.start()
                measured = queue.get(timeout=120)
                for rank in ranks:
                    rank.join()
            expected = 1 / (count + 1)
            bubble = statistics.median(measured)
            told = f"{schedule}, 2 stages, {count:2} micro-batches: "
            told += f"bubble {100 * bubble:.1f} %, {100 * expected:.1f} % expected"
            told += (
                f" ({100 * min(measured):.1f} to {100 * max(measured):.1f}, n = {len(measured)} steps); points apart"
            )
            apart = 100 * (bubble - expected)
            verdict(told, apart, "within 3", abs(apart) <= 3)


def stage(rank: int, count: int, schedule: str, folder: str, queue: Any) -> None:
    """One worker: steps of `count` shards; the first tells what part of each it stood still."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from shoal.data.batches import Batch
    from shoal.step.gang import Group
    from shoal.step.optims.sgd import Sgd
    from shoal.step.precisions.fp32 import Fp32
    from shoal.step.tasks.classify import Classify
    from shoal.strategies import RigSpec
    from shoal.strategies.pipeline import Pipeline

    busy = [0.0]

    def work(seconds: float) -> None:
        began = time.perf_counter()
        time.sleep(seconds)
        busy[0] += time.perf_counter() - began

    class Timed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            work(LAYER_S)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            work(2 * LAYER_S)
            return grad

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Timed.apply(x + self.shift)  # type: ignore[return-value]

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    strategy = Pipeline(schedule=schedule)  # type: ignore[arg-type]
    gang = strategy.seated(Group())
    model = nn.Sequential(*(Layer() for _ in range(2 * LAYERS)), nn.Flatten())
    spec = RigSpec(seed=0, shards=count, batch=2 * count, shape=(1, 2, 2))
    rig = strategy.rig(model, Sgd(lr=0.1).make, Classify(), Fp32(), gang, spec)
    measured = []
    for step in range(6):
        gang.barrier()
        busy[0], began = 0.0, time.perf_counter()
        for shard in range(count):
            images = torch.zeros(2, 1, 2, 2, dtype=torch.uint8)
            labels = torch.zeros(2, dtype=torch.int64)
            batch = Batch(images, labels, labels, 2 * count, step, ((shard, 2),), count)
            rig.forward_backward(batch, last=shard == count - 1)
        gang.barrier()
        measured.append(1 - busy[0] / (time.perf_counter() - began))
        rig.apply(0.1, 2 * count)
    if rank == 0:
        queue.put(measured[1:])
    gang.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
