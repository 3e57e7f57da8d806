"""Forecasts of whole recipes: parts add up, sizes that cannot be are refused, what binds is told."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shoal.base.errors import UsageError
from shoal.forecast.calibration import Calibration, Network
from shoal.forecast.question import Question
from shoal.forecast.sizes import Size, forecast
from shoal.forecast.told import binds, text
from shoal.forecast.ways import Way, partial_sums
from shoal.recipe.load import load

GIGABIT = Network(byte_s=8e-9, latency_s=5e-5)


def calibration(**known: Any) -> Calibration:
    held: dict[str, Any] = {
        "source": "a test", "images_per_epoch": 50_000, "val_images": 10_000, "parameters": 78_000,
        "gradient_bytes": 312_000, "side_bytes": 4_000, "shard_s": 1e-3, "image_s": 1e-3, "update_s": 2e-3,
        "eval_image_s": 3e-4, "save_s": 0.1, "jitter": 0.05, "spread": 0.02, "hop_s": 5e-5, "sum_byte_s": 1e-9,
        "call_s": 2e-4, "serve_byte_s": 1e-9, "share_byte_s": 5e-10,
    }  # fmt: skip
    return Calibration(**{**held, **known})


def reckon(
    workers: int, way: str = "ddp", network: Network = GIGABIT, *, weak: bool = False, shards: str = "4", **known: Any
) -> Size:
    recipe = load("cifar10-resnet8", [f"strategy={way}", f"shards={shards}"]).recipe
    return forecast(recipe, Way.of(recipe.strategy), workers, calibration(**known), network, weak=weak)


def test_one_worker_by_hand() -> None:
    size = reckon(1)
    assert size.step.compute == pytest.approx(4 * (1e-3 + 32e-3) + 2e-3)
    assert size.images_per_s == pytest.approx(128 / 0.134)
    assert size.speedup == size.efficiency == 1.0
    assert size.step.pauses == pytest.approx((10_000 * 3e-4 + 0.1) * 128 / 50_000)
    assert size.hours == pytest.approx(391 * size.step.total / 3600)
    assert size.machine_hours == size.hours


@pytest.mark.parametrize("way", ["ddp", "ps", "ps:mode=async", "local_sgd:every=8", "ddp:deterministic=true", "fsdp"])
def test_parts_add_up_and_the_interval_holds_the_figure(way: str) -> None:
    for workers in (2, 4):
        size = reckon(workers, way)
        assert sum(size.step.parts.values()) == pytest.approx(size.step.total)
        assert min(size.step.parts.values()) >= 0
        assert size.low < size.images_per_s < size.high
        assert size.images_per_s == pytest.approx(size.batch / (size.step.total - size.step.pauses))
        assert 1 < size.speedup <= workers


def test_three_workers_wait_for_the_one_with_two_shards() -> None:
    assert reckon(3).step.compute == reckon(2).step.compute


def test_more_shards_than_workers_are_refused_with_the_ways_out() -> None:
    with pytest.raises(UsageError, match=r"8 workers for 4 shards.*--weak.*shards=auto"):
        reckon(8)
    assert reckon(8, weak=True).batch == 8 * 128


def test_what_binds() -> None:
    assert reckon(1).binds == "compute"
    slow = Network(byte_s=8e-6)
    assert reckon(4, network=slow).binds == "exchange"
    assert "all-reduce" in binds(reckon(4, network=slow))
    assert reckon(4, jitter=2.0).binds == "waiting"
    assert reckon(4, network=Network(byte_s=8e-9, slow=5.0)).binds == "waiting"
    assert reckon(4, load_image_s=1e-2).binds == "input"
    assert reckon(4, load_image_s=1e-2).images_per_s == pytest.approx(4 / 1e-2, rel=0.1)
    assert reckon(4, eval_image_s=1.0).binds == "pauses"


def test_ways_compared_where_the_link_is_slow() -> None:
    slow = Network(byte_s=8e-7)
    speeds = {way: reckon(4, way, slow).images_per_s for way in ("ddp", "ps", "ps:mode=async", "local_sgd:every=16")}
    assert speeds["local_sgd:every=16"] > speeds["ddp"] > speeds["ps"]
    assert reckon(4, "ps:mode=async").step.staleness == pytest.approx(3, abs=0.3)


def test_a_slow_worker_hurts_synchronous_training_more() -> None:
    slowed = Network(byte_s=8e-9, slow=4.0)
    lost = {way: reckon(4, way, slowed).images_per_s / reckon(4, way).images_per_s for way in ("ddp", "ps:mode=async")}
    assert lost["ddp"] < 0.3 < 0.7 < lost["ps:mode=async"]


FREE: dict[str, Any] = {
    "network": Network(byte_s=0.0), "jitter": 0.0, "hop_s": 0.0, "shard_s": 0.0, "update_s": 0.0, "sum_byte_s": 0.0,
}  # fmt: skip
"""Nothing costs time but computing, image by image."""


@pytest.mark.parametrize(
    ("way", "workers", "shards", "share"),
    [
        ("pipeline", 4, "8", 8 / 11),  # the recipe's shards are the micro-batches
        ("pipeline:stages=4", 4, "auto", 16 / 19),
        ("pipeline:stages=4,microbatches=3", 4, "auto", 3 / 6),
        ("pipeline:stages=2", 4, "8", 4 / 5),  # two pipelines with four shards each
    ],
)
def test_a_pipeline_has_its_bubble(way: str, workers: int, shards: str, share: float) -> None:
    step = reckon(workers, way, shards=shards, **FREE).step
    assert step.compute / (step.total - step.pauses) == pytest.approx(share)


def test_a_pipeline_by_hand() -> None:
    """4 workers are 2 pipelines of 2 stages, with 2 shards of 32 images each, cut where the slower has 0.6 of it."""
    layers = [(0.3, 9e9), (0.3, 65_536.0), (0.2, 9e9), (0.2, 0.0)]
    step = reckon(4, "pipeline:stages=2", layers=layers, jitter=0.0).step
    work = 0.6 * 33e-3
    moves = 5e-5 + 2 * 5e-5 + 65_536 * 32 * 8e-9
    summed = 2 * (5e-5 + 2 * 5e-5) + 156_000 * 8e-9  # half the gradients over two pipelines
    assert step.compute == pytest.approx(2 * work + 1e-3)
    assert step.exchange == pytest.approx(33e-3 - work + 3 * max(0, 2 * moves - work) + summed)
    assert step.waiting == 0
    three = calibration(layers=layers).stages(3)
    assert three == (pytest.approx(0.4), 9e9) and calibration(layers=layers).stages(5) == (0.2, 0.0)


def test_pipelines_on_hosts_of_several_workers() -> None:
    """8 workers on 2 hosts are 2 pipelines of 4 stages, each on a host of its own: activations stay there, and all four
    columns are summed over one port."""
    packed = Network(byte_s=8e-9, latency_s=5e-5, per_host=4)
    layers = [(0.25, 65_536.0)] * 4
    step = reckon(8, "pipeline:stages=4", packed, layers=layers, jitter=0.0, weak=True).step
    slots, work = 4 + 4 - 1, 33e-3 / 4
    moves = 5e-5 + 65_536 * 32 * 1e-9
    summed = 2 * (5e-5 + 2 * 5e-5) + 4 * 78_000 * 8e-9
    assert step.compute == pytest.approx(4 * work + 5e-4)
    assert step.exchange == pytest.approx(33e-3 - work + slots * max(0, 2 * moves - work) + summed)


def test_ddp_by_hand() -> None:
    """The sum of buffers leaves when the forward pass is done, the gradients after it, in one bucket."""
    gradients = [(312_000, 0.9)]
    step = reckon(2, gradients=gradients, forward=0.5, bucket_s=1e-3, jitter=0.0, uneven=0.1, shards="2").step
    shard = 1e-3 + 64e-3
    side, bucket = (2 * (5e-5 + 2 * 5e-5) + nbytes * 8e-9 for nbytes in (4_000, 312_000))
    assert 0.5 * shard + side < 0.9 * shard
    assert step.compute == pytest.approx(shard + 2e-3)
    assert step.exchange == pytest.approx(1e-3 + max(0.0, 0.9 * shard + bucket - shard))
    assert step.waiting == pytest.approx(0.1 * step.compute)
    half = reckon(2, "ddp:compress=bf16", gradients=[(312_000, 1.0)], jitter=0.0, shards="2").step.exchange
    assert half == pytest.approx(2 * (5e-5 + 2 * 5e-5) + 156_000 * 8e-9)
    owned = reckon(2, "ddp:shard_optimizer=true", gradients=[(312_000, 1.0)], jitter=0.0, shards="2").step.exchange
    assert owned == pytest.approx(1.5 * (2 * (5e-5 + 2 * 5e-5) + 312_000 * 8e-9))


def test_a_deterministic_step_gathers_every_partial_sum() -> None:
    """A head, then gradients and buffers; three workers of eight shards have two partial sums each."""
    assert [partial_sums(8, n) for n in (1, 2, 3, 4, 8)] == [1, 1, 2, 1, 1]
    step = reckon(3, "ddp:deterministic=true", shards="8", jitter=0.0).step
    head = 4 * (5e-5 + 2 * 5e-5) + 4 / 3 * 32 * 8e-9
    assert step.exchange == pytest.approx(head + 2 * (2 * 15e-5 + 2 * (312_000 + 4_000) * 8e-9))


def test_shards_of_a_step_even_out() -> None:
    few, many = (reckon(2, shards=shards, jitter=0.2).step for shards in ("2", "32"))
    assert many.waiting / many.compute == pytest.approx(few.waiting / few.compute / 4)


def test_servers_do_the_update() -> None:
    assert reckon(2, "ps").step.compute == pytest.approx(reckon(2).step.compute - 2e-3)


def test_what_training_would_refuse_of_a_pipeline() -> None:
    for words, told in (
        ({"workers": 6, "weak": True}, "6 workers are no whole number of pipelines"),
        ({"workers": 8, "shards": "1"}, "8 workers are 2 pipelines of 4 stages, and a batch has 1 shard"),
    ):
        with pytest.raises(UsageError, match=told):
            reckon(way="pipeline:stages=4", **words)
    with pytest.raises(UsageError, match="say microbatches=4, or shards=8"):
        reckon(4, "pipeline:stages=4,microbatches=8")


def test_fsdp_by_hand() -> None:
    """A pass gathers twice and adds once, in 3 blocks, each over 3 messages of a quarter of it."""
    moved = 3 * (3 * 3 * (5e-5 + 2 * 5e-5) + 3 / 4 * 312_000 * 8e-9)
    side = 6 * (5e-5 + 2 * 5e-5) + 2 * 3 / 4 * 4_000 * 8e-9
    for shards, passes in (("4", 1), ("8", 2), ("9", 3)):  # 9: one worker has three, and the others wait for it
        size = reckon(4, "fsdp", shards=shards, blocks=3)
        assert size.step.exchange == pytest.approx(passes * moved + side)
        assert size.step.compute == pytest.approx(passes * (1e-3 + 128 / int(shards) * 1e-3) + 2e-3)
    moved, side = moved - 3 * 9 * 5e-5, side - 6 * 5e-5  # nccl sends at once
    hidden = reckon(4, "fsdp", blocks=3, device="cuda").step.exchange
    assert hidden == pytest.approx(moved / 9 + side)  # only the first block's gathering
    slow = reckon(4, "fsdp", Network(byte_s=1e-6, latency_s=5e-5), blocks=3, device="cuda").step.exchange
    moved, side = 3 * (9 * 1e-4 + 3 / 4 * 0.312), 6e-4 + 2 * 3 / 4 * 4e-3
    assert slow == pytest.approx(moved - 33e-3 + side)
    assert reckon(1, "fsdp").step.exchange == 0


def test_without_the_number_of_images_there_are_no_hours() -> None:
    size = reckon(2, images_per_epoch=0)
    assert size.hours is None and size.machine_hours is None and math.isfinite(size.images_per_s)
    assert " -  " in text([size], calibration(), GIGABIT, ())


@pytest.mark.parametrize(
    ("strategies", "told"),
    [
        ("local_sgd:evry=3", "strategy.evry"),
        ("local_sgd:every=0", "strategy.every"),
        ("ddp:compress=powersgd", "no cost model for it; known: ddp:compress=fp16 and bf16"),
        ("ps:compress=2bit", "no cost model"),
        ("ddp,ddp:deterministic=false", "ddp is there twice"),
        ("pipeline:stages=0", "strategy.stages"),
        ("pipeline:micro=8", "strategy.micro"),
        ("ddp,,ps", "a name is missing"),
        ("fsdb", "fsdb"),
        ("single", "strategy single has one worker, not 2; add --strategies ddp"),
    ],
)
def test_strategies_that_cannot_be(strategies: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        asked(strategies)
    assert told in str(error.value)


def test_strategies_with_options_are_split_where_names_begin() -> None:
    words = "ps:mode=async,on_dead=stop,ddp,pipeline:stages=2,microbatches=4,ddp:bucket_mb=5,threads=1"
    ways = [way.text for _, way in asked(words).recipes]
    assert ways == ["ps:mode=async", "ddp", "pipeline:stages=2,microbatches=4", "ddp:bucket_mb=5"]


def test_what_a_training_would_refuse() -> None:
    with pytest.raises(UsageError, match="400 steps between meetings are more than the 391 of an epoch"):
        reckon(2, "local_sgd:every=400")
    recipe = load("cifar10-resnet8", ["norm=sync"]).recipe
    with pytest.raises(UsageError, match="norm=sync"):
        forecast(recipe, Way.of(recipe.strategy), 2, calibration(), GIGABIT)
    assert forecast(recipe, Way.of(recipe.strategy), 1, calibration(), GIGABIT).workers == 1


def asked(strategies: str) -> Question:
    return Question.of(
        "cifar10-resnet8", (), (2,), strategies, "ring", weak=False, servers=None, per_host=1, slow=1.0, byte_s=1e-9,
        latency_s=0.0,
    )  # fmt: skip
