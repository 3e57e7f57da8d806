"""Strategies under which each worker holds a part of the model: what they take, and what they refuse."""

from __future__ import annotations

import pytest
from torch import nn

from shoal.base.errors import UsageError
from shoal.models import Model, create
from shoal.strategies.divided.units import units
from shoal.strategies.pipeline import Pipeline


def test_units_are_the_blocks_of_a_model():
    resnet = create(Model(name="resnet18"), classes=10, channels=3, seed=0).module
    assert units(resnet)[-2:] == ["layer4.0", "layer4.1"]
    assert "fc" not in units(resnet)
    assert units(nn.Sequential(nn.Linear(9, 9), nn.ReLU(), nn.Sequential(nn.Linear(9, 9)))) == ["0", "2.0"]
    assert units(nn.Linear(3, 3)) == []


def test_a_layer_that_a_list_holds_is_no_unit_for_nobody_knows_how_it_is_called():
    assert units(nn.ModuleList([nn.Linear(2, 2)])) == []


@pytest.mark.parametrize(
    ("options", "workers", "shards", "told"),
    [
        ({"stages": 2}, 3, 4, "3 workers are no whole number of pipelines of 2 stages; use 2 workers"),
        ({"stages": 4}, 2, 4, "use 4 workers"),
        ({"stages": 1}, 8, 4, "8 workers are 8 pipelines of 1 stages, and a batch has 4 shards; use at most 4 workers"),
        ({"stages": 2, "microbatches": 4}, 2, 8, "say microbatches=8, or shards=4"),
        ({"stages": 2, "microbatches": 4}, 4, 4, "say microbatches=2, or shards=8"),
    ],
)
def test_what_does_not_come_out_even_is_told(options: dict, workers: int, shards: int, told: str):
    with pytest.raises(UsageError, match=told):
        Pipeline(**options).check(workers, 0, shards)


def test_what_fits():
    Pipeline().check(4, 0, 1)  # more workers than shards: one pipeline of four stages
    Pipeline(stages=2, microbatches=4).check(4, 0, 8)
    assert Pipeline(stages=2, microbatches=3).at_once(4) == 6
    assert Pipeline().takes(4, 1) and not Pipeline(stages=3).takes(4, 8)
