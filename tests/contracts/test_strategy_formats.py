"""Strategies in other number formats: half precision, a loss scale, compressed gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from by_hand import by_hand
from job import FEWER, UNEVEN, Poison
from trainings import assert_same, every_taker, load_and_go_on, never_finite, numbers_of, run, single

from gangs import GangPool


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
