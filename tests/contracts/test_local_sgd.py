"""Local SGD: held against the same by hand, a model for each worker; every image counts once."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from by_hand import by_hand
from job import AUGMENT, FEWER, UNEVEN, Job, Net, Poison, cut_of, lr, optim_of, pixels, precision_of, task_of
from torch import nn
from trainings import Outcome, assert_same, numbers_of

from gangs import GangPool
from shoal.base.duration import Duration
from shoal.base.errors import UsageError
from shoal.data.batches import Batches
from shoal.step.gang import Gang
from shoal.step.inputs import Inputs
from shoal.step.meters import Meters
from shoal.step.randomness import seed_for
from shoal.strategies import Rig, RigSpec
from shoal.strategies.local_sgd import LocalSgd

SEED = 3


def rig_of(gang: Gang, job: Job, options: dict[str, Any]) -> Rig:
    data = pixels(job)
    spec = RigSpec(SEED, job.shards, job.batch, job.images, job.norm, job.clip_norm, job.half_life, data.mean, data.std)
    strategy = LocalSgd(**options)
    return strategy.rig(Net(job.net), optim_of(job).make, task_of(job), precision_of(job), gang, spec)


def train(gang: Gang, job: Job, options: dict[str, Any], first: int = 0, state: Any = None) -> Outcome:
    rig = rig_of(gang, job, options)
    if state is not None:
        rig.load_state_dict(state)
    cut = cut_of(job, gang.rank, gang.num_ranks)
    meters, applied, history = Meters(cut.shards, gang), [], []
    asks = {step: ask for step, rank, ask in job.asks if rank == gang.rank}
    for step, batches in enumerate(Batches(pixels(job), AUGMENT, cut, thread=False).steps(first, job.steps), first):
        rig.ask, rig.seen = asks.get(step, 0), cut.span.images_before(step)
        outputs = [(batch, rig.forward_backward(batch, last=batch is batches[-1])) for batch in batches]
        applied.append(tuple(rig.apply(lr(step), cut.count(step))))
        if applied[-1][0]:
            for batch, output in outputs:
                meters.add(batch, output)
        model = {"model": rig.model.state_dict(), "optimizer": {"state": {}}}
        history.append(numbers_of(model))
    rig.meet()
    state = copy.deepcopy(rig.state_dict())
    sent = rig.bytes_sent
    return Outcome(numbers_of(state), state, meters.read_epoch(), applied, sent, history)


def hand(job: Job, n: int, every: int, outer: tuple[float, float] = (1.0, 0.0)) -> list[dict[str, torch.Tensor]]:
    """`model.*` of each worker after each step, by worker and step: [step * n + worker]. Plain torch."""
    data, task = pixels(job), task_of(job)
    inputs = Inputs(data.mean, data.std, torch.float64, torch.device("cpu"))
    models = [Net(job.net).double().train() for _ in range(n)]
    optimizers = [optim_of(job).make(model) for model in models]
    start = [held.detach().clone() for held in models[0].parameters()]
    speed = [torch.zeros_like(held) for held in start]
    images, history = [0] * n, []
    for step in range(job.steps):
        for worker, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            batches = Batches(data, AUGMENT, cut_of(job, worker, n), thread=False).prepare(step)
            own = sum(len(batch.images) for batch in batches)
            if not own:
                continue
            images[worker] += own
            before = {name: buffer.clone() for name, buffer in model.named_buffers()}
            means = {name: torch.zeros_like(buffer) for name, buffer in before.items() if buffer.is_floating_point()}
            optimizer.zero_grad()
            for batch in batches:
                for name, buffer in model.named_buffers():
                    buffer.copy_(before[name])
                seed_for(batch, SEED)
                loss, _ = task.loss(model, inputs(batch.images), batch, SEED)
                (loss / own).backward()
                for name, mean in means.items():
                    mean += model.get_buffer(name) * len(batch.images) / own
            for name, mean in means.items():
                model.get_buffer(name).copy_(mean)
            for group in optimizer.param_groups:
                group["lr"] = lr(step)
            optimizer.step()
        if (step + 1) % every == 0:
            meet(models, images, start, speed, outer)
            images = [0] * n
        history += [numbers_of({"model": model.state_dict(), "optimizer": {"state": {}}}) for model in models]
    return history


@torch.no_grad()
def meet(models: list[nn.Module], images: list[int], start: list, speed: list, outer: tuple[float, float]) -> None:
    parts = [count / sum(images) for count in images]
    for number, held in enumerate(zip(*(model.parameters() for model in models), strict=True)):
        mean = sum(one * part for one, part in zip(held, parts, strict=True))
        delta = start[number] - mean
        speed[number].mul_(outer[1]).add_(delta)
        new = start[number] - outer[0] * (delta + outer[1] * speed[number])
        start[number].copy_(new)
        for one in held:
            one.copy_(new)
    for held in zip(*(model.buffers() for model in models), strict=True):
        mean = sum(one.double() * part for one, part in zip(held, parts, strict=True))
        for one in held:
            one.copy_(mean if one.is_floating_point() else mean.round())


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(
    ("job", "every"), [(UNEVEN, 2), (FEWER, 3), (replace(UNEVEN, optim="adamw", net="dropout"), 2)]
)
@pytest.mark.parametrize("outer", [(1.0, 0.0), (0.7, 0.9)], ids=["mean", "diloco"])
def test_equals_the_same_by_hand(gang_pool: GangPool, n: int, job: Job, every: int, outer: tuple[float, float]):
    """Also where a short batch leaves workers without images (FEWER): they stand still."""
    job = replace(job, half_life=None, steps=6, images=14 if every == 3 else job.images)
    options = {"every": every, "outer_lr": outer[0], "outer_momentum": outer[1]}
    expected = hand(job, n, every, outer)
    for rank, outcome in enumerate(gang_pool.run(train, n, job, options)):
        for step in range(job.steps):
            assert_same(outcome.history[step], expected[step * n + rank], exactly=False)


@pytest.mark.parametrize("n", [2, 3])
def test_every_image_counts_once(gang_pool: GangPool, n: int):
    job = replace(UNEVEN, steps=6)  # two epochs
    outcomes = gang_pool.run(train, n, job, {"every": 2})
    for outcome in outcomes:
        assert outcome.metrics.count == 2 * job.images
        assert_same(outcome.numbers, outcomes[0].numbers, exactly=True)


def test_until_the_switch_it_is_the_training_of_every_other_strategy(gang_pool: GangPool):
    job = replace(UNEVEN, steps=5)
    options = {"every": 2, "after": Duration.parse("3st")}
    expected = by_hand(job).history
    for outcome in gang_pool.run(train, 2, job, options):
        for step in range(3):
            want = {name: value for name, value in expected[step].items() if name.startswith("model.")}
            assert_same(outcome.history[step], want, exactly=False)
    first, second = gang_pool.run(train, 2, job, options)
    assert not torch.equal(first.history[3]["model.0.weight"], second.history[3]["model.0.weight"]), "they parted"
    assert_same(first.history[4], second.history[4], exactly=True)


def test_bytes_are_a_fraction_and_a_wish_to_stop_waits_for_the_meeting(gang_pool: GangPool):
    job = replace(UNEVEN, images=88, steps=8, half_life=None, norm="frozen", asks=((5, 1, 2), (6, 1, 2), (7, 1, 2)))
    every, always = (gang_pool.run(train, 2, job, {"every": count})[0] for count in (8, 1))
    assert [asked for _, asked in every.applied] == [0] * 7 + [2]
    assert every.bytes_sent * 7.9 < always.bytes_sent


def test_an_overflow_is_skipped_by_its_worker_and_its_images_are_not_counted(gang_pool: GangPool):
    job = replace(UNEVEN, precision="fp32", nonfinite="skip", poison=Poison(1, shard=4), steps=4)
    first, second = gang_pool.run(train, 2, job, {"every": 2})
    assert [stepped for stepped, _ in first.applied] == [True] * 4
    assert [stepped for stepped, _ in second.applied] == [True, False, True, True]
    cut = cut_of(job, 1, 2)
    lost = sum(len(batch.images) for batch in Batches(pixels(job), AUGMENT, cut, thread=False).prepare(1))
    assert first.metrics.count == 11 + 11 + 7 + 11 - lost
    assert_same(first.numbers, second.numbers, exactly=True)


def test_a_checkpoint_holds_means_and_goes_on_with_any_number_of_workers(gang_pool: GangPool):
    options = {"every": 2, "outer_lr": 0.7, "outer_momentum": 0.9}
    saved = gang_pool.run(train, 2, replace(UNEVEN, steps=4), options)
    for own in saved[1:]:
        assert_same(own.numbers, saved[0].numbers, exactly=True)
    assert saved[0].state["outer"].keys() == {"momentum_buffer"}
    for n in (1, 3):
        outcomes = gang_pool.run(train, n, replace(UNEVEN, steps=6), options, 4, saved[0].state)
        for own in outcomes:
            assert_same(own.numbers, outcomes[0].numbers, exactly=True)
            assert own.metrics.count == 18, "steps 4 and 5"


def refused(gang: Gang, options: dict[str, Any]) -> str:
    try:
        rig_of(gang, UNEVEN, options)
    except UsageError as error:
        return str(error)
    return "was taken"


def test_meetings_rarer_than_epochs_are_refused(gang_pool: GangPool):
    (told,) = gang_pool.run(refused, 1, {"every": 4})
    assert "4 steps between meetings" in told and "at most 3" in told
    assert [key for key, _ in LocalSgd(deterministic=True).faults()] == ["deterministic"]
