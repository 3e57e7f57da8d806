"""Running statistics: pieces of one flat tensor, weighted by images, undone to the bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.data.batches import Batch
from shoal.strategies.replicated.buffers import Buffers

SIZES = (3, 2, 2)
"""Images of each shard."""


class Masked(nn.Module):
    """Holds what is no running statistic."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("table", torch.tensor([0.1, 0.2], dtype=torch.float32))
        self.register_buffer("nothing", None)
        self.register_buffer("unsaved", torch.full((2, 2), 3.0, dtype=torch.float64), persistent=False)


def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), Masked(), nn.BatchNorm2d(3, momentum=0.5)).double()


def forward(net: nn.Sequential, images: Tensor) -> None:
    net[3](net[1](net[0](images)))


def shard(number: int, step: int = 0) -> Batch:
    nothing = torch.zeros(0)
    return Batch(nothing, nothing, nothing, sum(SIZES), step, ((number, SIZES[number]),), len(SIZES))


def images_of(number: int) -> Tensor:
    return torch.randn(SIZES[number], 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def copies(net: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in net.named_buffers()}


def step(net: nn.Sequential, buffers: Buffers) -> None:
    total = torch.zeros(buffers.size, dtype=torch.float64)
    for number in range(len(SIZES)):
        buffers.begin_shard()
        forward(net, images_of(number))
        total += buffers.leaf(shard(number))
    buffers.take(total)


def assert_equal(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())


def test_a_step_is_the_mean_over_images_of_what_each_shard_makes_of_the_start():
    net = model()
    alone = []
    for number in range(len(SIZES)):
        other = copy.deepcopy(net)
        forward(other, images_of(number))
        alone.append(copies(other))
    step(net, Buffers(net, average=True))
    for name, buffer in net.named_buffers():
        if buffer.dtype == torch.float64:
            expected = sum(size * held[name] for size, held in zip(SIZES, alone, strict=True)) / sum(SIZES)
            torch.testing.assert_close(buffer, expected, rtol=1e-12, atol=1e-12, msg=name)


def test_whole_numbers_count_steps_not_shards():
    net = model()
    buffers = Buffers(net, average=True)
    for done in (1, 2, 3):
        step(net, buffers)
        assert net[1].num_batches_tracked.dtype == torch.int64 and net[1].num_batches_tracked.shape == ()
        assert int(net[1].num_batches_tracked) == int(net[3].num_batches_tracked) == done


def test_constants_of_other_types_are_left_alone():
    net: Any = nn.Sequential(model()[0], Masked()).double()
    net[1]._buffers["table"] = torch.tensor([0.1, 0.2])  # float32 in a float64 model
    held: Any = {name: buffer for name, buffer in net[1].named_buffers() if name in ("mask", "table")}
    Buffers(net, average=True)
    assert all(net[1]._buffers[name] is buffer for name, buffer in held.items())


@pytest.mark.parametrize("average", [True, False])
def test_a_model_loads_into_the_pieces(average: bool):
    net, trained = model(), model()
    buffers = Buffers(net, average=average)
    for _ in range(3):
        forward(trained, images_of(0))
    places = {name: buffer.data_ptr() for name, buffer in net.named_buffers()}
    net.load_state_dict(trained.state_dict())
    assert {name: buffer.data_ptr() for name, buffer in net.named_buffers()} == places
    assert_equal(copies(net), copies(trained))
    buffers.begin_shard()  # the step begins from what was loaded
    forward(net, images_of(1))
    buffers.undo()
    assert_equal(copies(net), copies(trained))


@pytest.mark.parametrize("average", [True, False])
def test_undo_goes_back_to_the_bit(average: bool):
    net = model()
    buffers = Buffers(net, average=average)
    step(net, buffers)
    before = copies(net)
    step(net, buffers)
    assert not torch.equal(net[1].running_mean, before["1.running_mean"])
    buffers.undo()
    assert_equal(copies(net), before)


def test_a_worker_without_images_undoes_to_the_same_start():
    net = model()
    buffers = Buffers(net, average=True)
    step(net, buffers)
    before = copies(net)
    buffers.take(torch.ones(buffers.size, dtype=torch.float64))  # the others' sum; nothing was computed here
    assert float(net[1].running_mean[0]) == 1
    buffers.undo()
    assert_equal(copies(net), before)


def test_without_averaging_there_is_nothing_to_send():
    net = model()
    buffers = Buffers(net, average=False)
    assert buffers.size == 0 and len(buffers.leaf(shard(0))) == 0
    forward(net, images_of(0))
    before = copies(net)
    buffers.take(torch.zeros(0, dtype=torch.float64))
    assert_equal(copies(net), before)


@pytest.mark.parametrize("average", [True, False])
def test_a_buffer_that_two_modules_share_stays_one(average: bool):
    net = model()
    net[3]._buffers["running_mean"] = net[1]._buffers["running_mean"]
    buffers = Buffers(net, average=average)
    step(net, buffers)
    assert net[3].running_mean is net[1].running_mean


def test_an_asynchronous_push_moves_statistics_a_part_of_the_way():
    net: Any = model()
    net[2]._buffers["unsaved"][0, 0] = float("-inf")  # a constant that no arithmetic bears
    buffers, before, other = Buffers(net, average=True), copies(net), copy.deepcopy(net)
    forward(other, images_of(0))
    buffers.begin_shard()
    forward(net, images_of(0))
    buffers.keep(0.25)
    for name, buffer in net.named_buffers():
        there = dict(other.named_buffers())[name]
        if "running" in name:
            there = before[name] + (there - before[name]) / 4
        torch.testing.assert_close(buffer, there, rtol=1e-15, atol=0, msg=name)
    buffers.undo()
    assert_equal(copies(net), before)


def test_buffers_that_are_left_to_the_model_are_left():
    net, other = model(), model()
    buffers = Buffers(net, average=False)
    forward(other, images_of(0))
    buffers.begin_shard()
    forward(net, images_of(0))
    buffers.keep(0.25)
    assert_equal(copies(net), copies(other))
