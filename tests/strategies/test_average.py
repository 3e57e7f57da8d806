"""The moving average counts images: a half-life is a half-life in any number of steps."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from shoal.strategies.replicated.average import Average


def model(number: float) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).double()
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            tensor.fill_(number)
    return net


def value(average: Average) -> float:
    """The one number that all parameters and running statistics hold."""
    tensors = [*average.model.parameters(), *average.model.buffers()]
    (number,) = {float(x) for tensor in tensors if tensor.is_floating_point() for x in tensor.flatten()}
    return number


@pytest.mark.parametrize("steps", [[100], [50, 50], [7, 11, 1, 81], [1] * 100])
def test_after_a_half_life_an_old_weight_is_one_half(steps: list[int]):
    average, now = Average(model(0), half_life=100), model(1)
    for images in steps:
        average.follow(now, images)
    assert value(average) == pytest.approx(0.5, rel=1e-12)
    average.follow(now, 100)
    assert value(average) == pytest.approx(0.75, rel=1e-12)


def test_whole_numbers_are_taken_as_they_are():
    average, now = Average(model(0), half_life=100), model(7)
    average.follow(now, 1)
    assert int(average.model[1].num_batches_tracked) == 7  # type: ignore[index, arg-type]


def test_it_stands_beside_the_model():
    now = model(2)
    average = Average(now, half_life=10)
    average.follow(model(3), 10)
    assert {float(p.detach().flatten()[0]) for p in now.parameters()} == {2}
    assert not any(p.requires_grad for p in average.model.parameters())
    assert not average.model.training and now.training


def test_it_closes_in_on_a_model_that_stands_still():
    average, now = Average(model(0), half_life=10), model(1)
    seen = []
    for _ in range(60):
        average.follow(now, 10)
        seen.append(value(average))
    assert all(a < b for a, b in pairwise(seen[:40])) and seen[-1] == pytest.approx(1, abs=1e-12)
