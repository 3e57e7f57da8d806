"""Dropout and drop-path masks belong to a shard, whoever computes it and whatever with."""

from __future__ import annotations

import pytest
import torch
from a_gang import a_batch
from hypothesis import given
from hypothesis import strategies as st
from timm.layers.drop import DropPath
from torch import nn
from torch.nn import functional

from shoal.base.errors import ShoalError
from shoal.data.batches import Batch
from shoal.step.randomness import ShardStreams, seed_for


def a_model() -> nn.Sequential:
    return nn.Sequential(nn.Dropout(0.5), DropPath(0.3), nn.Dropout(0.1), DropPath(0.5, scale_by_keep=False))


def batch_of(shards: tuple[tuple[int, int], ...], step: int = 0) -> Batch:
    return a_batch([0] * sum(size for _, size in shards), shards, step=step)


def masks(shards: tuple[tuple[int, int], ...], *, seed: int = 0, step: int = 0) -> torch.Tensor:
    """What the layers make of ones [B, 3, 4], the batch started anew."""
    model = a_model()
    streams = ShardStreams(model)
    with streams.of(batch_of(shards, step), seed):
        return model(torch.ones(sum(size for _, size in shards), 3, 4))


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5), first=st.integers(0, 5), cut=st.integers(0, 5))
def test_a_shard_has_the_same_masks_alone_and_among_others(sizes, first, cut):
    shards = tuple((first + n, size) for n, size in enumerate(sizes))
    whole = masks(shards, seed=3, step=4)
    groups = [group for group in (shards[:cut], shards[cut:]) if group]
    assert torch.equal(torch.cat([masks(group, seed=3, step=4) for group in groups]), whole)
    assert torch.equal(torch.cat([masks((shard,), seed=3, step=4) for shard in shards]), whole)


def test_masks_are_of_seed_step_and_shard_alone():
    first = masks(((0, 8),))
    torch.manual_seed(5)
    assert torch.equal(masks(((0, 8),)), first)
    for other in (masks(((1, 8),)), masks(((0, 8),), step=1), masks(((0, 8),), seed=1)):
        assert not torch.equal(other, first)


def test_a_second_layer_and_a_second_pass_draw_on():
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    streams = ShardStreams(model)
    ones = torch.ones(4, 50)
    with streams.of(batch_of(((0, 4),)), 0):
        first, second = model[0](ones), model[1](ones)
    assert not torch.equal(first, second)
    with streams.of(batch_of(((0, 4),)), 0):
        assert torch.equal(model[0](ones), first)


def test_dropout_is_per_value_and_drop_path_per_image():
    count = 4000
    model = nn.ModuleList([nn.Dropout(0.25), DropPath(0.25), DropPath(0.25, scale_by_keep=False)])
    streams = ShardStreams(model)
    ones = torch.ones(count, 2, 3)
    with streams.of(batch_of(((0, count // 2), (1, count // 2))), 0):
        values, paths, unscaled = (layer(ones) for layer in model)
    kept = float(torch.tensor(1.0) / 0.75)
    assert values.unique().tolist() == paths.unique().tolist() == [0.0, kept]
    assert unscaled.unique().tolist() == [0.0, 1.0]
    assert values.mean() == pytest.approx(1, abs=0.02) and paths.mean() == pytest.approx(1, abs=0.06)
    assert unscaled.mean() == pytest.approx(0.75, abs=0.04)
    for whole_images in (paths, unscaled):
        assert (whole_images.flatten(1) == whole_images[:, :1, 0]).all()
    assert not (values.flatten(1) == values[:, :1, 0]).all()


@pytest.mark.parametrize("layer", [nn.Dropout(1.0), DropPath(1.0), DropPath(1.0, scale_by_keep=False)])
def test_dropping_everything_is_zero_not_nan(layer):
    model = nn.Sequential(layer)
    with ShardStreams(model).of(batch_of(((0, 3),)), 0):
        assert torch.equal(model(torch.ones(3, 2)), torch.zeros(3, 2))


def test_nothing_is_dropped_in_validation_or_at_rate_0():
    model = nn.Sequential(nn.Dropout(0.0), DropPath(0.0), *a_model())
    ShardStreams(model)
    ones = torch.ones(2, 3)
    assert torch.equal(model[:2](ones), ones)
    assert torch.equal(model.eval()(ones), ones)


def test_a_worker_without_images_drops_nothing_and_fails_at_nothing():
    none = torch.zeros(0, dtype=torch.int64)
    empty = Batch(torch.zeros(0, 1, 4, 4, dtype=torch.uint8), none, none, count_global=5, shards=())
    model = a_model()
    streams = ShardStreams(model)
    inputs = torch.ones(0, 3, 4, requires_grad=True)
    with streams.of(empty, 0):
        model(inputs).sum().backward()
    assert inputs.grad is not None and inputs.grad.shape == (0, 3, 4)


def test_layers_that_are_not_known_can_at_least_be_repeated():
    model = nn.Sequential(nn.Dropout2d(0.5), nn.AlphaDropout(0.5))
    streams = ShardStreams(model)
    outputs = []
    for state in (1, 2):
        torch.manual_seed(state)
        with streams.of(batch_of(((2, 6),), step=9), 0):
            outputs.append(model(torch.ones(6, 8, 3, 3)))
    assert torch.equal(*outputs)


def test_the_model_keeps_its_names():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.BatchNorm1d(2))
    before = list(model.state_dict())
    ShardStreams(model)
    assert list(model.state_dict()) == before
    assert isinstance(model[1], nn.Dropout)


def test_seed_for_starts_torchs_own_generator_for_a_shard():
    def drawn(seed: int, step: int, shard: int) -> tuple[float, ...]:
        seed_for(batch_of(((shard, 4),), step), seed)
        return tuple(nn.functional.dropout(torch.ones(64), 0.5).tolist())

    first = drawn(0, 0, 0)
    torch.rand(7)
    assert drawn(0, 0, 0) == first
    assert len({first, drawn(1, 0, 0), drawn(0, 1, 0), drawn(0, 0, 1)}) == 4


def test_seed_for_takes_every_seed_that_a_recipe_may_state():
    for seed in (0, 2**31, 2**63 - 1):
        for step in (0, 10**9):
            seed_for(batch_of(((63, 2),), step), seed)


def test_functional_dropout_belongs_to_shards_too_also_over_pieces_of_images():
    """timm's nets call the function; windowed ones on several rows per image."""

    def forward(images: torch.Tensor) -> torch.Tensor:
        return functional.dropout(images.repeat_interleave(3, 0), 0.5, training=True)

    streams = ShardStreams(nn.Identity())
    with streams.of(batch_of(((0, 2), (1, 3))), 0):
        whole = forward(torch.ones(5, 40))
    with streams.of(batch_of(((1, 3),)), 0):
        assert torch.equal(forward(torch.ones(3, 40)), whole[6:])


def test_dropout_that_no_shard_can_own_is_refused():
    streams = ShardStreams(nn.Identity())
    with streams.of(batch_of(((0, 2), (1, 3))), 0):
        with pytest.raises(ShoalError, match="dropout over 7 rows of 5 images"):
            functional.dropout(torch.ones(7, 2), 0.5)
        query = torch.ones(5, 1, 4, 4)
        with pytest.raises(ShoalError, match="dropout inside attention"):
            functional.scaled_dot_product_attention(query, query, query, dropout_p=0.1)
