"""Trainings of a job with the rig of a strategy, by as many workers as it takes; and what must be the same."""

from __future__ import annotations

import copy
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from job import AUGMENT, FEWER, PEAK, SEED, UNEVEN, Job, Net, cut_of, lr, optim_of, pixels, precision_of, task_of
from torch import Tensor

from gangs import GangPool
from late import Late
from shoal.base.errors import UsageError
from shoal.data.batches import Batches
from shoal.kvstore.client import Client
from shoal.kvstore.server import Server
from shoal.models import Model
from shoal.recipe.load import short_form
from shoal.recipe.part import kinds
from shoal.step.gang import Gang
from shoal.step.meters import Meters, Metrics
from shoal.step.nonfinite import NonFiniteError
from shoal.step.served import Served
from shoal.strategies import Rig, RigSpec, Strategy

ASYNCHRONOUS = {"local_sgd", "dist_async"}
"""Strategies that promise accounting, not a trajectory; they have tests of their own."""


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
