"""The contract of the strategies seam: whoever computes it, and with how many workers, the same recipe is trained.

Every synchronous strategy in the folder is tested here from the day it appears, at each number of workers it takes.
It is held against `by_hand`: the training as a page of plain torch, without rig, gang or exchange. Equality is float64
to 1e-12, or bits where the strategy is deterministic.
"""

from __future__ import annotations

import copy
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from gangs import GangPool
from shoal.base.duration import Span
from shoal.base.errors import ShoalError, UsageError
from shoal.data.augment import Augment
from shoal.data.batches import Batch, Batches, Cut, eval_chunks
from shoal.data.order import share
from shoal.data.source import NO_LABEL, Held
from shoal.data.sources.synthetic import Synthetic
from shoal.kvstore.client import Client
from shoal.kvstore.server import Server
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
        yield gang
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
    layout = strategy_of(name, job).layout(gang.num_ranks)
    cut = cut_of(job, layout.replica_of_rank[gang.rank], layout.num_replicas, merged=job.norm == "sync")
    meters = Meters(cut.shards, gang, task_of(job))
    asks = {step: ask for step, rank, ask in job.asks if rank == gang.rank}
    applied, history = [], []
    for step, batches in enumerate(Batches(pixels(job), AUGMENT, cut, thread=False).steps(first, job.steps), first):
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


def takers() -> Iterator[tuple[str, int]]:
    """(strategy, workers) for all that take so many."""
    for name in (text for part in kinds("strategies") for text in SORTS.get(part, (part,))):
        for n in (1, 2, 3) if name not in ASYNCHRONOUS else ():
            try:
                strategy_of(name, UNEVEN).check(n, servers_of(name, n), FEWER.shards)
            except UsageError:
                continue
            yield name, n


TAKERS = list(takers())
every_taker = pytest.mark.parametrize(("name", "n"), TAKERS, ids=[f"{name}-{n}" for name, n in TAKERS])


def run(pool: GangPool, name: str, n: int, job: Job, *rest: Any) -> list[Outcome]:
    outcomes = pool.run(train, n, name, job, *rest)
    assert_agree(outcomes)
    return outcomes


def test_the_folder_is_tested():
    assert {("single", 1), ("ddp", 1), ("ddp", 2), ("ddp", 3)} <= set(TAKERS)
    assert ("single", 2) not in TAKERS
    assert {("dp:devices=3,kvstore=local", 1), ("ps", 1), ("ps", 2), ("ps", 3)} <= set(TAKERS)


# The trajectory -----------------------------------------------------------------------------------------------------


@every_taker
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_training_by_hand(gang_pool: GangPool, name: str, n: int, shape: str, net: str):
    job = replace(SHAPES[shape], **NETS[net])
    expected = by_hand(job)
    for outcome in run(gang_pool, name, n, job):
        assert_same(outcome.numbers, expected.numbers, exactly=False)
        assert_metrics(outcome.metrics, expected.metrics)
        assert outcome.applied == [(True, 0)] * job.steps
        assert (outcome.bytes_sent > 0) == (n > 1 or servers_of(name, n) > 0)
    cut = cut_of(job)
    assert expected.metrics.count == sum(cut.count(step) for step in range(job.steps))  # nothing is dropped or padded


@every_taker
@pytest.mark.parametrize("shape", ["uneven", "fewer"])
def test_a_student_is_the_same_for_any_number_of_workers(gang_pool: GangPool, name: str, n: int, shape: str):
    job = replace(SHAPES[shape], taught=True)
    for outcome in run(gang_pool, name, n, job):
        assert_same(outcome.numbers, by_hand(job).numbers, exactly=False)
    metrics = outcome.metrics
    assert metrics.parts is not None and metrics.seen == sum(cut_of(job).count(step) for step in range(job.steps))
    assert metrics.count < metrics.seen
    exactly = replace(job, exactly=True, net="norm-dropout")
    outcome = run(gang_pool, name, n, exactly)[0]
    assert_same(outcome.numbers, single(gang_pool, exactly).numbers, exactly=True)
    assert outcome.metrics == single(gang_pool, exactly).metrics


@every_taker
@pytest.mark.parametrize("shape", SHAPES)
def test_sync_dropout_belongs_to_shards(gang_pool: GangPool, name: str, n: int, shape: str):
    job = replace(SHAPES[shape], net="norm-dropout", norm="sync", mixup=0.4)
    expected = single(gang_pool, job)
    assert_same(run(gang_pool, name, n, job)[0].numbers, expected.numbers, exactly=False)


@every_taker
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("net", [{"norm": "shard"}, {"norm": "frozen"}, {"channels_last": True}], ids=repr)
def test_deterministic_gives_the_same_bits(gang_pool: GangPool, name: str, n: int, shape: str, net: dict[str, Any]):
    job = replace(SHAPES[shape], net="norm-dropout", mixup=0.4, clip_norm=1.0, exactly=True, **net)
    expected = single(gang_pool, job)
    outcome = run(gang_pool, name, n, job)[0]
    assert outcome.numbers["model.0.weight"].dtype == torch.float32
    assert_same(outcome.numbers, expected.numbers, exactly=True)
    assert outcome.metrics == expected.metrics
    assert (outcome.bytes_sent > 0) == (n > 1 or servers_of(name, n) > 0)


_SINGLES: dict[Job, Outcome] = {}


def single(pool: GangPool, job: Job) -> Outcome:
    """The single run, once per job. In a process of the pool, because threads are set there."""
    if job not in _SINGLES:
        _SINGLES[job] = pool.run(train, 1, "single", job)[0]
    return _SINGLES[job]


@every_taker
def test_deterministic_is_no_other_training(gang_pool: GangPool, name: str, n: int):
    """The tree only orders additions: in float64 it trains what is trained without."""
    job = replace(UNEVEN, tree=True)
    assert_same(run(gang_pool, name, n, job)[0].numbers, by_hand(UNEVEN).numbers, exactly=False)


# Steps that go wrong ------------------------------------------------------------------------------------------------


@every_taker
@pytest.mark.parametrize("shape", ["uneven", "fewer"])
@pytest.mark.parametrize("norm", ["shard", "sync", "frozen"])
def test_all_skip_together(gang_pool: GangPool, name: str, n: int, shape: str, norm: Any):
    """Step 1 is, with shape `fewer`, one in which a worker has no images; shard 1 is not rank 0's for three workers."""
    bad = 1
    job = replace(SHAPES[shape], norm=norm, nonfinite="skip", poison=Poison(bad, shard=1))
    expected = by_hand(job)
    for outcome in run(gang_pool, name, n, job):
        assert [stepped for stepped, _ in outcome.applied] == [step != bad for step in range(job.steps)]
        assert_same(outcome.history[bad], outcome.history[bad - 1], exactly=True)
        assert_same(outcome.numbers, expected.numbers, exactly=False)


@every_taker
def test_skipping_is_exact_where_training_is(gang_pool: GangPool, name: str, n: int):
    job = replace(FEWER, net="norm-dropout", exactly=True, nonfinite="skip", poison=Poison(1, shard=1))
    outcome = run(gang_pool, name, n, job)[0]
    assert_same(outcome.numbers, single(gang_pool, job).numbers, exactly=True)
    assert_same(outcome.history[1], outcome.history[0], exactly=True)


@every_taker
@pytest.mark.parametrize("precision", ["O1", "O2", "O3", "bf16"])
def test_half_precisions_skip_and_scale_alike(gang_pool: GangPool, name: str, n: int, precision: str):
    """The same bits as one worker's, an overflow in shard 1 of step 1 included; masters stay float32."""
    if precision != "O2" and (n == 3 or "devices=1" in name or (precision == "O3" and name == "ps")):
        pytest.skip("O2 stands for the others here, and servers hold no float16")
    job = replace(FEWER, precision=precision, exactly=True, nonfinite="skip", poison=Poison(1, shard=1), steps=3)
    outcomes, expected = run(gang_pool, name, n, job), single(gang_pool, job)
    for outcome in outcomes:
        assert [stepped for stepped, _ in outcome.applied] == [True, False, True]
        assert_same(outcome.history[1], outcome.history[0], exactly=True)
        assert_same(outcome.numbers, expected.numbers, exactly=True)
        assert outcome.state.get("scaler") == expected.state.get("scaler")
    kept = torch.float16 if precision == "O3" else torch.float32
    assert {t.dtype for t in expected.state["model"].values() if t.is_floating_point()} == {kept}
    if precision in ("O1", "O2"):
        assert expected.state["scaler"] == {"scale": 32768.0, "dynamic": True, "clean": 1, "in_row": 0, "skipped": 1}


@every_taker
@pytest.mark.parametrize("exactly", [False, True], ids=["sum", "tree"])
def test_a_loss_scale_changes_nothing_where_nothing_overflows(gang_pool: GangPool, name: str, n: int, exactly: bool):
    """A power of two has no rounding: with masters and BatchNorm's bits it is the same training at any fixed scale."""
    job = replace(FEWER, net="plain", steps=2, exactly=exactly, nonfinite="skip", scaled=True)
    plain = replace(job, scaled=False)
    assert_same(run(gang_pool, name, n, job)[0].numbers, run(gang_pool, name, n, plain)[0].numbers, exactly=True)


def test_masters_are_bit_equal_across_precisions(gang_pool: GangPool):
    state = single(gang_pool, replace(FEWER, exactly=True, steps=2)).state
    for precision in ("O0", "O1", "O2", "bf16", "fp16", "fp32"):
        for before, after in gang_pool.run(
            load_and_go_on,
            1,
            "single",
            replace(FEWER, exactly=True, precision=precision, steps=3, nonfinite="skip"),
            state,
        ):
            assert_same(before, numbers_of(state), exactly=True)
            assert after["model.0.weight"].dtype == torch.float32


def stopping(gang: Gang, name: str, job: Job) -> tuple[str, bool]:
    try:
        train(gang, name, job)
    except NonFiniteError as error:
        return str(error), error.elsewhere
    return "went on", False


@every_taker
@pytest.mark.parametrize("exactly", [False, True], ids=["sum", "tree"])
@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("shape", ["uneven", "fewer"])
def test_all_stop_together_and_the_culprit_is_named(
    gang_pool: GangPool, name: str, n: int, shape: str, where: Any, exactly: bool
):
    bad = 1
    job = replace(SHAPES[shape], poison=Poison(1, bad, where), exactly=exactly, steps=3)
    layout = strategy_of(name, job).layout(n)
    told = {"loss": "the loss of shard 1", "gradient": "gradient of 0.weight"}[where]
    for rank, (text, elsewhere) in enumerate(gang_pool.run(stopping, n, name, job)):
        mine = bad in share(job.shards, layout.replica_of_rank[rank], layout.num_replicas)
        assert f"step 1, rank {rank}:" in text
        assert (told in text) == mine, text
        assert elsewhere == (not mine), text


def test_the_twentieth_skip_in_a_row_stops(gang_pool: GangPool):
    job = replace(FEWER, steps=25, nonfinite="skip")
    assert "20 steps in a row" in gang_pool.run(never_finite, 1, "single", job)[0]


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(
    "name",
    [
        "ddp:compress=fp16", "ddp:compress=bf16", "ddp:compress=powersgd,powersgd_after=2",
        "ddp:compress=2bit,threshold=0.02", "ps:compress=fp16", "ps:compress=2bit,threshold=0.02",
    ],
)  # fmt: skip
def test_compressed_gradients_skip_together_and_train_on(gang_pool: GangPool, name: str, n: int):
    """Step 3 is poisoned; in step 2 and 5 a short batch may leave a worker without images."""
    job = replace(UNEVEN, precision="fp32", nonfinite="skip", poison=Poison(3, shard=1), steps=6)
    for outcome in run(gang_pool, name, n, job):
        assert [stepped for stepped, _ in outcome.applied] == [True] * 3 + [False] + [True] * 2
        assert_same(outcome.history[3], outcome.history[2], exactly=True)
        moved = [outcome.history[step]["model.0.weight"] for step in (2, 4, 5)]
        assert all(weights.isfinite().all() for weights in moved)
        assert not torch.equal(moved[0], moved[1]) and not torch.equal(moved[1], moved[2])
    if "16" in name:
        torch.testing.assert_close(
            outcome.numbers["model.0.weight"], by_hand(replace(job, precision="fp64")).numbers["model.0.weight"],
            rtol=0.05, atol=0.01, check_dtype=False,
        )  # fmt: skip


def test_a_fixed_loss_scale_that_overflows_for_ever_stops_with_advice(gang_pool: GangPool):
    told = gang_pool.run(
        never_finite, 1, "single", replace(FEWER, steps=25, nonfinite="skip", precision="O2", scaled=True)
    )
    assert "20 steps in a row" in told[0] and "Lower precision.loss_scale" in told[0]


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


# Asking -------------------------------------------------------------------------------------------------------------


@every_taker
@pytest.mark.parametrize(("norm", "exactly"), [("shard", False), ("shard", True), ("sync", False)])
def test_an_ask_reaches_all_in_the_same_step(gang_pool: GangPool, name: str, n: int, norm: Any, exactly: bool):
    last = n - 1  # in steps 1 and 3 of three workers, one without images
    asks = ((1, last, 1), (2, last, 2), (3, last, 2), (3, 0, 1 if n > 1 else 2), (4, 0, 1))
    job = replace(FEWER, norm=norm, asks=asks, exactly=exactly, steps=6)
    for outcome in run(gang_pool, name, n, job):
        assert [asked for _, asked in outcome.applied] == [0, 1, 2, 2, 1, 0]


# States -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "exactly"), [("shard", False), ("shard", True), ("sync", False), ("frozen", True)])
def test_any_strategy_goes_on_from_any_other(gang_pool: GangPool, norm: Any, exactly: bool):
    """Saved inside an epoch after 4 of 7 steps, with momentum, average and buffers, by each; continued by each."""
    job = replace(UNEVEN, net="norm-dropout", norm=norm, exactly=exactly, steps=7)
    expected = single(gang_pool, job)  # uninterrupted
    for before, n in TAKERS:
        saved = run(gang_pool, before, n, replace(job, steps=4))[0].state
        for after, m in TAKERS:
            outcome = run(gang_pool, after, m, job, 4, saved)[0]
            assert_same(outcome.numbers, expected.numbers, exactly=exactly)


@every_taker
@pytest.mark.parametrize("optim", ["sgd", "adamw"])
def test_a_state_does_not_know_the_memory_layout(gang_pool: GangPool, name: str, n: int, optim: Any):
    """Fused kernels walk momentum and weights in memory order; a momentum that is loaded must lie as the weights do."""
    job = replace(UNEVEN, optim=optim)
    expected = by_hand(job)
    for before in (False, True):
        saved = single(gang_pool, replace(job, steps=3, channels_last=before)).state
        outcome = run(gang_pool, name, n, replace(job, channels_last=not before), 3, saved)[0]
        assert_same(outcome.numbers, expected.numbers, exactly=False)


def load_and_go_on(gang: Gang, name: str, job: Job, state: dict[str, Any]) -> tuple[dict, dict]:
    before = numbers_of(state)
    train(gang, name, job, 3, state)
    return before, numbers_of(state)


@every_taker
def test_a_state_belongs_to_who_loads_it_from(gang_pool: GangPool, name: str, n: int):
    state = single(gang_pool, replace(UNEVEN, steps=3)).state
    for before, after in gang_pool.run(load_and_go_on, n, name, UNEVEN, state):
        assert_same(after, before, exactly=True)


@every_taker
def test_a_state_without_an_average_begins_one_from_the_weights(gang_pool: GangPool, name: str, n: int):
    job = replace(UNEVEN, half_life=None, steps=2)
    saved = run(gang_pool, name, n, job)[0].state
    assert "ema" not in saved
    outcome = run(gang_pool, name, n, replace(job, half_life=1e30, steps=3), 2, saved)[0]
    for key, tensor in saved["model"].items():
        if tensor.is_floating_point():
            torch.testing.assert_close(outcome.numbers[f"ema.{key}"], tensor, rtol=1e-12, atol=1e-12)


def misfit(gang: Gang, name: str, job: Job) -> tuple[str, bool]:
    with joined(gang, name) as gang:
        return refused(rig_of(gang, name, job))


def refused(rig: Rig) -> tuple[str, bool]:
    before = numbers_of(rig.state_dict())
    other = Net("norm", channels=2).double().state_dict()
    other["more"] = other.pop("9.bias")
    try:
        rig.load_state_dict({"model": other, "optimizer": None})
    except ShoalError as error:
        after = numbers_of(rig.state_dict())
        return str(error), all(torch.equal(after[key], tensor) for key, tensor in before.items())
    return "was taken", False


@every_taker
def test_a_state_of_another_model_is_refused_by_the_names_of_tensors(gang_pool: GangPool, name: str, n: int):
    for text, unchanged in gang_pool.run(misfit, n, name, UNEVEN):
        assert all(told in text for told in ("0.weight", "[4, 2, 3, 3]", "[4, 1, 3, 3]", "9.bias", "more")), text
        assert "4.weight" not in text
        assert unchanged


# Evaluating ---------------------------------------------------------------------------------------------------------


def look(gang: Gang, name: str, job: Job, state: dict[str, Any]) -> dict[str, Any]:
    """Evaluates in the middle of training."""
    with joined(gang, name) as gang:
        return looked(rig_of(gang, name, job), job, state)


def looked(rig: Rig, job: Job, state: dict[str, Any]) -> dict[str, Any]:
    rig.load_state_dict(state)

    def modes() -> list[bool]:
        return [module.training for module in rig.model.modules()]

    ((_, chunk),) = eval_chunks(pixels(job), AUGMENT, job.images)
    before, trained = numbers_of(rig.state_dict()), modes()
    plain, averaged = rig.evaluate(chunk), rig.evaluate(chunk, averaged=True)
    after = numbers_of(rig.state_dict())
    assert not plain.requires_grad
    return {
        "before": before,
        "after": after,
        "same_modes": modes() == trained,
        "plain": plain.clone(),
        "ema": averaged.clone(),
    }


@every_taker
@pytest.mark.parametrize("norm", ["shard", "sync", "frozen"])
def test_evaluating_is_equal_everywhere_and_leaves_no_trace(gang_pool: GangPool, name: str, n: int, norm: Any):
    job = replace(UNEVEN, net="norm-dropout", norm=norm)
    state = single(gang_pool, job).state
    looks = gang_pool.run(look, n, name, job, state)
    ((_, chunk),) = eval_chunks(pixels(job), AUGMENT, job.images)
    inputs = Inputs(pixels(job).mean, pixels(job).std, torch.float64, torch.device("cpu"))(chunk.images)
    for held in looks:
        assert_same(held["after"], held["before"], exactly=True)
        assert held["same_modes"]
        for key, weights in (("plain", state["model"]), ("ema", state["ema"])):
            model = Net(job.net).double()
            model.load_state_dict(weights)
            assert torch.equal(held[key], looks[0][key])
            with torch.no_grad():
                torch.testing.assert_close(held[key], model.eval()(inputs), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(looks[0]["plain"], looks[0]["ema"])
