"""Jobs that strategies are held against each other by: small nets, images and options, as a recipe would say them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shoal.base.duration import Span
from shoal.data.augment import Augment
from shoal.data.batches import Batch, Cut
from shoal.data.source import NO_LABEL, Held
from shoal.data.sources.synthetic import Synthetic
from shoal.recipe.part import kinds
from shoal.step.distilling import Asked, Taught
from shoal.step.optims.adamw import Adamw
from shoal.step.optims.sgd import Sgd
from shoal.step.precisions.fp32 import Fp32
from shoal.step.precisions.fp64 import Fp64
from shoal.step.scaling import Scaler
from shoal.step.task import Task
from shoal.step.tasks.classify import Classify
from shoal.step.tasks.distill import Distill, Teacher

CLASSES = 3
SEED = 3
PEAK = 0.1


@dataclass(frozen=True)
class Poison:
    """A shard that goes wrong in one step: its loss, or only the gradient of it, is infinite."""

    step: int
    shard: int
    where: Literal["loss", "gradient"] = "gradient"


@dataclass(frozen=True)
class Job:
    """What a recipe would say."""

    net: Literal["plain", "norm", "dropout", "norm-dropout"] = "norm"
    norm: Literal["shard", "sync", "frozen"] = "shard"
    images: int = 29
    batch: int = 11
    shards: int = 5
    steps: int = 5
    exactly: bool = False
    """float32 with strategy.deterministic: bits; else float64, to 1e-12."""
    tree: bool = False
    """strategy.deterministic, in float64."""
    optim: Literal["sgd", "adamw"] = "sgd"
    clip_norm: float | None = None
    mixup: float = 0.0
    nonfinite: Literal["stop", "skip"] = "stop"
    poison: Poison | None = None
    asks: tuple[tuple[int, int, int], ...] = ()
    """(step, rank, ask)."""
    half_life: float | None = 40.0
    """Of the average, in images."""
    channels_last: bool = False
    precision: str = ""
    """Another one than `exactly` asks for."""
    scaled: bool = False
    """With a fixed loss scale, that float32 or float64 have no need of."""
    taught: bool = False
    """By a teacher, every third image without a label."""


UNEVEN = Job(images=29, batch=11, shards=5)
"""Batches of 11, 11, 7: neither 2 nor 3 workers divide the shards, shards are uneven, step 4 begins an epoch."""
FEWER = Job(images=8, batch=6, shards=3)
"""Batches of 6, 2: the second step already has fewer images than shards; the third of three workers has none."""
ONE = Job(images=15, batch=7, shards=4)
"""Batches of 7, 7, 1: only the first worker has an image."""
SHAPES = {"uneven": UNEVEN, "fewer": FEWER, "one": ONE}

NETS: dict[str, dict[str, Any]] = {
    "plain": {"net": "plain"},
    "adamw": {"net": "plain", "optim": "adamw", "clip_norm": 0.5},
    "shard": {"net": "norm", "norm": "shard"},
    "sync": {"net": "norm", "norm": "sync"},
    "frozen": {"net": "norm", "norm": "frozen"},
    "dropout": {"net": "dropout", "mixup": 0.4},
    "layout": {"net": "norm", "channels_last": True},
}


class Net(nn.Sequential):
    def __init__(self, kind: str, channels: int = 1, seed: int = 5) -> None:
        torch.manual_seed(seed)
        norm = "norm" in kind
        super().__init__(
            nn.Conv2d(channels, 4, 3, padding=1, bias=not norm),
            nn.BatchNorm2d(4) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Dropout(0.3 if "dropout" in kind else 0.0),
            nn.Conv2d(4, 5, 3, stride=2, bias=not norm),
            nn.BatchNorm2d(5, momentum=0.3) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Dropout(0.5 if "dropout" in kind else 0.0),
            nn.Flatten(),
            nn.Linear(5 * 3 * 3, CLASSES),
        )
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):  # as if trained: frozen layers would do nothing much otherwise
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.running_mean, -0.2, 0.2)  # type: ignore[arg-type]
                nn.init.uniform_(module.running_var, 0.5, 1.5)  # type: ignore[arg-type]


class _Infinite(torch.autograd.Function):
    """The identity, with a gradient that is not finite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * torch.inf


class Poisoned(Classify, frozen=True, kw_only=True):
    poison: Any = None

    def loss(self, net: Any, inputs: Tensor, batch: Batch, seed: int) -> tuple[Tensor, Tensor]:
        total, logits = Classify.loss(self, net, inputs, batch, seed)
        poison = self.poison
        if poison and batch.step == poison.step and poison.shard in [shard for shard, _ in batch.shards]:
            total = total * torch.inf if poison.where == "loss" else _Infinite.apply(total)  # type: ignore[assignment]
        return total, logits


class ScaledFp32(Fp32, frozen=True, kw_only=True):
    def scaler(self) -> Scaler:
        return Scaler(1024.0)


class ScaledFp64(Fp64, frozen=True, kw_only=True):
    def scaler(self) -> Scaler:
        return Scaler(1024.0)


def pixels(job: Job) -> Held:
    held = Synthetic(images=job.images, classes=CLASSES, channels=1, size=8).open("train")
    if job.taught:
        held.labels[::3] = NO_LABEL
    return held


def optim_of(job: Job) -> Sgd | Adamw:
    if job.optim == "adamw":
        return Adamw(lr=PEAK, weight_decay=0.01, eps=1e-3)
    return Sgd(lr=PEAK, momentum=0.9, nesterov=True, weight_decay=0.01, decay_norms=False)


def precision_of(job: Job) -> Any:
    if job.precision:
        fixed = {"loss_scale": 1024.0} if job.scaled else {}
        return kinds("precisions")[job.precision](name=job.precision, nonfinite=job.nonfinite, **fixed)
    kind = (ScaledFp32 if job.exactly else ScaledFp64) if job.scaled else Fp32 if job.exactly else Fp64
    return kind(nonfinite=job.nonfinite)


def task_of(job: Job) -> Task:
    if job.taught:
        data, task = pixels(job), Distill(teacher=Teacher(run="nowhere"), temperature=2.0, smoothing=0.1)
        return Taught.by(task, Asked(Net("norm", seed=6), data.mean, data.std, 2.0, dtype=precision_of(job).dtype()))
    return Poisoned(smoothing=0.1, mixup=job.mixup, poison=job.poison)


def lr(step: int) -> float:
    return PEAK / (1 + step)


AUGMENT = Augment(pad=1, mirror=True)


def cut_of(job: Job, replica: int = 0, num_replicas: int = 1, *, merged: bool = False) -> Cut:
    return Cut(Span(job.images, job.batch), job.shards, SEED, replica, num_replicas, merged)
