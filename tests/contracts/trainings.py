"""Trainings that strategies are held against each other by: small jobs, done with a rig, and by hand in plain torch."""

from __future__ import annotations

import copy
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from gangs import GangPool
from late import Late
from shoal.base.duration import Span
from shoal.base.errors import UsageError
from shoal.data.augment import Augment
from shoal.data.batches import Batch, Batches, Cut
from shoal.data.source import NO_LABEL, Held
from shoal.data.sources.synthetic import Synthetic
from shoal.kvstore.client import Client
from shoal.kvstore.server import Server
from shoal.models import Model
from shoal.recipe.load import short_form
from shoal.recipe.part import kinds
from shoal.step.distilling import Asked, Taught
from shoal.step.gang import Gang
from shoal.step.inputs import Inputs
from shoal.step.meters import Meters, Metrics
from shoal.step.nonfinite import NonFiniteError
from shoal.step.optims.adamw import Adamw
from shoal.step.optims.sgd import Sgd
from shoal.step.precisions.fp32 import Fp32
from shoal.step.precisions.fp64 import Fp64
from shoal.step.randomness import seed_for
from shoal.step.scaling import Scaler
from shoal.step.served import Served
from shoal.step.task import Task
from shoal.step.tasks.classify import Classify
from shoal.step.tasks.distill import Distill, Teacher
from shoal.strategies import Rig, RigSpec, Strategy

CLASSES = 3
SEED = 3
PEAK = 0.1
ASYNCHRONOUS = {"local_sgd", "dist_async"}
"""Strategies that promise accounting, not a trajectory; they have tests of their own."""


# The trainings ------------------------------------------------------------------------------------------------------


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


@dataclass
class Outcome:
    """What is left of a training, at one rank."""

    numbers: dict[str, Tensor]
    """Everything that a checkpoint would hold: `model.*`, `optimizer.*`, `ema.*`."""
    state: dict[str, Any]
    metrics: Metrics
    applied: list[tuple[bool, int]] = field(default_factory=list)
    bytes_sent: int = 0
    history: list[dict[str, Tensor]] = field(default_factory=list)
    """`numbers` after each step."""


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


def strategy_of(text: str, job: Job) -> Strategy:
    """text: as on a command line, `ddp` or `dp:devices=3`."""
    name, options = short_form(text)
    part = kinds("strategies")[name]
    return part(name=name, deterministic=job.exactly or job.tree, **options)  # type: ignore[return-value]


def servers_of(name: str, n: int) -> int:
    """How many servers a strategy is tested with."""
    return (1, 2, 1)[n - 1] if name.startswith("ps") else 0


@contextmanager
def joined(gang: Gang, name: str) -> Iterator[Gang]:
    """The gang that the strategy would join; servers are threads of the first rank."""
    count = servers_of(name, gang.num_ranks)
    if not count:
        yield strategy_of(name, UNEVEN).seated(gang)
        return
    secret, threads, addresses = b"of the contract tests", [], []
    if gang.rank == 0:
        for rank in range(count):
            listening = socket.create_server(("127.0.0.1", 0))
            addresses.append(f"127.0.0.1:{listening.getsockname()[1]}")
            server = Server(listening, secret, gang.num_ranks, rank=rank, num_servers=count)
            threads.append(threading.Thread(target=server.serve, daemon=True))
            threads[-1].start()
    told = gang.broadcast_bytes(",".join(addresses).encode() if gang.rank == 0 else None).decode().split(",")
    served = Served(
        Client(told, gang.rank, gang.num_ranks, secret), gang.rank, gang.num_ranks, gang.device, num_servers=count
    )
    try:
        yield served
    finally:
        served.close()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive(), "a server goes on after the last goodbye"


def rig_of(gang: Gang, name: str, job: Job) -> Rig:
    torch.use_deterministic_algorithms(job.exactly, warn_only=True)
    data, optim = pixels(job), optim_of(job)
    spec = RigSpec(
        seed=SEED,
        shards=job.shards,
        norm=job.norm,
        clip_norm=job.clip_norm,
        ema_half_life=job.half_life,
        mean=data.mean,
        std=data.std,
        shape=data.shape,
        channels_last=job.channels_last,
    )
    return strategy_of(name, job).rig(Net(job.net), optim.make, task_of(job), precision_of(job), gang, spec)


def numbers_of(state: dict[str, Any]) -> dict[str, Tensor]:
    """A state's tensors by name, copied."""
    found = {f"model.{name}": tensor for name, tensor in state["model"].items()}
    found |= {f"ema.{name}": tensor for name, tensor in state.get("ema", {}).items()}
    for number, held in state["optimizer"]["state"].items():
        found |= {f"optimizer.{number}.{key}": torch.as_tensor(value) for key, value in held.items()}
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def train(gang: Gang, name: str, job: Job, first: int = 0, state: dict[str, Any] | None = None) -> Outcome:
    """Steps `first` to job.steps, with the verbs of the trainer."""
    with joined(gang, name) as gang:
        return trained(gang, name, job, first, state)


def trained(gang: Gang, name: str, job: Job, first: int, state: dict[str, Any] | None) -> Outcome:
    rig = rig_of(gang, name, job)
    if state is not None:
        rig.load_state_dict(state)
    cut = cut_of(job, *gang.place, merged=job.norm == "sync")
    meters = Meters(cut.shards, gang, task_of(job))
    asks = {step: ask for step, rank, ask in job.asks if rank == gang.rank}
    applied, history = [], []
    # As on a device: what comes is there from the moment on in which the rig asks for it.
    upload = None if rig.spreads else Late()
    made = Batches(pixels(job), AUGMENT, cut, thread=False, upload=upload)
    for step, batches in enumerate(made.steps(first, job.steps), first):
        rig.ask = asks.get(step, 0)
        for batch in batches:
            meters.add(batch, rig.forward_backward(batch, last=batch is batches[-1]))
        applied.append(tuple(rig.apply(lr(step), cut.count(step))))
        history.append(numbers_of(rig.state_dict()))
    rig.settle()
    state = copy.deepcopy(rig.state_dict())
    outcome = Outcome(numbers_of(state), state, meters.read_epoch(), applied, rig.bytes_sent, history)
    rig.close()
    return outcome


# The same by hand ---------------------------------------------------------------------------------------------------


def whole(batches: list[Batch]) -> Batch:
    """A step's shards as one batch."""
    images, labels, indices = (
        torch.cat([getattr(batch, name) for batch in batches]) for name in ("images", "labels", "indices")
    )
    return replace(batches[0], images=images, labels=labels, indices=indices)


@cache
def by_hand(job: Job) -> Outcome:
    """One process, plain torch: a loop over shards, or ordinary BatchNorm over the whole batch where norm is sync."""
    data, task, dtype = pixels(job), task_of(job), precision_of(job).dtype()
    inputs = Inputs(data.mean, data.std, dtype, torch.device("cpu"))
    model = Net(job.net).to(dtype).train()
    for module in model.modules():
        if job.norm == "frozen" and isinstance(module, nn.BatchNorm2d):
            module.eval()
    optimizer = optim_of(job).make(model)
    average = copy.deepcopy(model)
    batches, cut = Batches(data, AUGMENT, cut_of(job), thread=False), cut_of(job)
    sums, history, applied = torch.zeros(3, dtype=torch.float64), [], []
    for step in range(job.steps):
        parts = batches.prepare(step)
        parts = [whole(parts)] if job.norm == "sync" else parts
        start = {name: buffer.clone() for name, buffer in model.named_buffers()}
        means = {name: torch.zeros_like(buffer, dtype=torch.float64) for name, buffer in start.items()}
        optimizer.zero_grad()
        for batch in parts:
            for name, buffer in model.named_buffers():
                buffer.copy_(start[name])
            seed_for(batch, SEED)
            loss, logits = task.loss(model, inputs(batch.images), batch, SEED)
            (loss / cut.count(step)).backward()
            for name, buffer in model.named_buffers():
                means[name] += buffer.double() * len(batch.images) / cut.count(step)
            top1 = int((logits.argmax(1) == batch.labels).sum())
            sums += torch.tensor([loss.item(), top1, len(logits)], dtype=torch.float64)
        skipped = job.poison is not None and step == job.poison.step
        for name, buffer in model.named_buffers():
            buffer.copy_(start[name] if skipped else means[name] if buffer.is_floating_point() else means[name].round())
        applied.append((not skipped, 0))
        if not skipped:
            if job.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm)
            for group in optimizer.param_groups:
                group["lr"] = lr(step)
            optimizer.step()
            if job.half_life is not None:
                old = 0.5 ** (cut.count(step) / job.half_life)
                for mine, new in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                    mine.copy_(mine * old + new * (1 - old) if mine.is_floating_point() else new)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"ema": average.state_dict()} if job.half_life is not None else {}
        history.append(numbers_of(state))
    loss, top1, count = sums.tolist()
    metrics = Metrics(loss / count, top1 / count, 1.0, round(count))  # of 3 classes, all are among the first 5
    return Outcome(history[-1], copy.deepcopy(state), metrics, applied, 0, history)


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor], *, exactly: bool) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        where = lambda text, name=name: f"{name}: {text}"  # noqa: E731
        if exactly or not tensor.is_floating_point():
            same = got[name].dtype == tensor.dtype and got[name].numpy().tobytes() == tensor.numpy().tobytes()
            assert same, where("other bits")
        else:
            torch.testing.assert_close(got[name], tensor, rtol=1e-12, atol=1e-12, msg=where)


def assert_agree(outcomes: list[Outcome]) -> None:
    """All ranks hold the same bits and the same figures."""
    for outcome in outcomes[1:]:
        assert_same(outcome.numbers, outcomes[0].numbers, exactly=True)
        assert outcome.metrics == outcomes[0].metrics
        assert outcome.applied == outcomes[0].applied


def assert_metrics(got: Metrics, expected: Metrics) -> None:
    assert (got.count, got.top1, got.top5) == (expected.count, expected.top1, expected.top5)
    assert got.loss == pytest.approx(expected.loss, rel=1e-12, abs=0)


# Who is tested ------------------------------------------------------------------------------------------------------


SORTS = {"dp": ("dp:devices=1", "dp:devices=2,kvstore=device", "dp:devices=3,kvstore=local")}
"""Options under which a strategy is tested, where its defaults do not show all it does."""


DIVIDED = {"fsdp", "pipeline"}
"""Strategies that divide the model; with one worker they are `single`."""


def takers() -> Iterator[tuple[str, int]]:
    """(strategy, workers) for all that take so many."""
    for name in (text for part in kinds("strategies") for text in SORTS.get(part, (part,))):
        for n in (1, 2, 3) if name not in ASYNCHRONOUS else ():
            if n == 1 and name in DIVIDED:
                continue
            try:
                strategy_of(name, UNEVEN).check(n, servers_of(name, n), FEWER.shards)
            except UsageError:
                continue
            yield name, n


TAKERS = list(takers())
every_taker = pytest.mark.parametrize(("name", "n"), TAKERS, ids=[f"{name}-{n}" for name, n in TAKERS])


def refusal(name: str, job: Job) -> str | None:
    """Why a recipe of this job would be refused with that strategy; None where it is not."""
    strategy = strategy_of(name, job)
    recipe: Any = SimpleNamespace(
        norm=job.norm, precision=precision_of(job), model=Model(name="digits-cnn"), monitor=None
    )
    wrong = [*strategy.faults(), *strategy.misfits(recipe)]
    return f"{name}, {wrong[0][0]}: {wrong[0][1]}" if wrong else None


def skip_if_refused(name: str, job: Job) -> None:
    if reason := refusal(name, job):
        pytest.skip(reason)


def run(pool: GangPool, name: str, n: int, job: Job, *rest: Any) -> list[Outcome]:
    skip_if_refused(name, job)
    outcomes = pool.run(train, n, name, job, *rest)
    assert_agree(outcomes)
    return outcomes


_SINGLES: dict[Job, Outcome] = {}


def single(pool: GangPool, job: Job) -> Outcome:
    """The single run, once per job. In a process of the pool, because threads are set there."""
    if job not in _SINGLES:
        _SINGLES[job] = pool.run(train, 1, "single", job)[0]
    return _SINGLES[job]


def load_and_go_on(gang: Gang, name: str, job: Job, state: dict[str, Any]) -> tuple[dict, dict]:
    before = numbers_of(state)
    train(gang, name, job, 3, state)
    return before, numbers_of(state)


def never_finite(gang: Gang, name: str, job: Job) -> str:
    rig = rig_of(gang, name, job)
    with torch.no_grad():
        rig.model[-1].bias.fill_(torch.nan)  # type: ignore[index, operator]
    for batches in Batches(pixels(job), AUGMENT, cut_of(job), thread=False).steps(0, job.steps):
        for batch in batches:
            rig.forward_backward(batch, last=batch is batches[-1])
        try:
            rig.apply(PEAK, job.batch)
        except NonFiniteError as error:
            return str(error)
    return "went on"
