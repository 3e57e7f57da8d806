"""The contract of the strategies seam: whoever computes it, and with how many workers, the same recipe is trained.

Every synchronous strategy in the folder is tested here from the day it appears, at each number of workers it takes.
It is held against `by_hand`: the training as a page of plain torch, without rig, gang or exchange. Equality is float64
to 1e-12, or bits where the strategy is deterministic.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from by_hand import by_hand
from job import AUGMENT, FEWER, NETS, SHAPES, UNEVEN, Job, Net, Poison, cut_of, pixels
from trainings import (
    TAKERS,
    assert_metrics,
    assert_same,
    every_taker,
    joined,
    load_and_go_on,
    never_finite,
    numbers_of,
    refusal,
    rig_of,
    run,
    servers_of,
    single,
    skip_if_refused,
    trained,
)

from gangs import GangPool
from shoal.base.errors import ShoalError
from shoal.data.batches import eval_chunks
from shoal.data.order import share
from shoal.step.gang import Gang
from shoal.step.inputs import Inputs
from shoal.step.nonfinite import NonFiniteError
from shoal.strategies import Rig


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


def stopping(gang: Gang, name: str, job: Job) -> tuple[str, bool, tuple[int, int]]:
    """What was told, whether the cause lies elsewhere, and the worker's place."""
    with joined(gang, name) as gang:
        try:
            trained(gang, name, job, 0, None)
        except NonFiniteError as error:
            return str(error), error.elsewhere, gang.place
    return "went on", False, gang.place


@every_taker
@pytest.mark.parametrize("exactly", [False, True], ids=["sum", "tree"])
@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("shape", ["uneven", "fewer"])
def test_all_stop_together_and_the_culprit_is_named(
    gang_pool: GangPool, name: str, n: int, shape: str, where: Any, exactly: bool
):
    bad = 1
    job = replace(SHAPES[shape], poison=Poison(1, bad, where), exactly=exactly, steps=3)
    skip_if_refused(name, job)
    told = {"loss": "the loss of shard 1", "gradient": "gradient of 0.weight"}[where]
    for rank, (text, elsewhere, place) in enumerate(gang_pool.run(stopping, n, name, job)):
        mine = bad in share(job.shards, *place)
        assert f"step 1, rank {rank}:" in text
        assert (told in text) == mine, text
        assert elsewhere == (not mine), text


def test_the_twentieth_skip_in_a_row_stops(gang_pool: GangPool):
    job = replace(FEWER, steps=25, nonfinite="skip")
    assert "20 steps in a row" in gang_pool.run(never_finite, 1, "single", job)[0]


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
    """Saved inside an epoch after 4 of 7 steps, with momentum, average and buffers, by each; continued by each (every
    pair of strategies once, each with the most workers; the others in a ring)."""
    job = replace(UNEVEN, net="norm-dropout", norm=norm, exactly=exactly, steps=7)
    expected = single(gang_pool, job)  # uninterrupted
    takers = [(name, n) for name, n in TAKERS if not refusal(name, job)]
    most = [*dict(takers).items()] if norm == "shard" and not exactly else []
    for place, taker in enumerate(takers):
        saved = run(gang_pool, *taker, replace(job, steps=4))[0].state
        after_it = {takers[(place + 1) % len(takers)], *(most if taker in most else ())}
        for after, m in sorted(after_it):
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
        return looked(rig_of(gang, name, job), job, state) | {"speaks": gang.speaks}


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
    skip_if_refused(name, job)
    state = single(gang_pool, job).state
    looks = gang_pool.run(look, n, name, job, state)
    ((_, chunk),) = eval_chunks(pixels(job), AUGMENT, job.images)
    inputs = Inputs(pixels(job).mean, pixels(job).std, torch.float64, torch.device("cpu"))(chunk.images)
    for held in looks:
        assert_same(held["after"], held["before"], exactly=True)
        assert held["same_modes"]
    looks = [held for held in looks if held["speaks"]]
    for held in looks:
        for key, weights in (("plain", state["model"]), ("ema", state["ema"])):
            model = Net(job.net).double()
            model.load_state_dict(weights)
            assert torch.equal(held[key], looks[0][key])
            with torch.no_grad():
                torch.testing.assert_close(held[key], model.eval()(inputs), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(looks[0]["plain"], looks[0]["ema"])
