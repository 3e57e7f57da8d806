"""A NaN is an answer: the first tensor that is not finite has a name."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from a_gang import a_batch
from torch import nn

from shoal.data.batches import Batch
from shoal.step import nonfinite


class Poisoned(nn.Module):
    """Turns one value of its input into `value`, where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.value: float | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.value is None:
            return x
        x = x.clone()
        x[-1, 0] = self.value
        return x


def a_model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.BatchNorm1d(4), Poisoned(), nn.ReLU(), nn.Linear(4, 3))


def forward_of(model: nn.Module, factor: float = 1.0):
    def forward(batch: Batch) -> torch.Tensor:
        logits = model(batch.images.float())
        return nn.functional.cross_entropy(logits, batch.labels, reduction="sum") * factor

    return forward


BATCHES = [a_batch([0, 1, 2], ((4, 3),)), a_batch([2, 1, 0, 0], ((5, 2), (6, 2)))]


def first(model: nn.Module, factor: float = 1.0) -> str | None:
    return nonfinite.first(model, BATCHES, forward_of(model, factor))


def test_nothing_is_named_where_all_is_finite():
    model = a_model()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert first(model) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_parameter_is_named(value):
    model = a_model()
    model[5].weight.data[1, 2] = value
    assert first(model) == "parameter 5.weight"


def test_a_buffer_is_named():
    model = a_model()
    model[2].running_var[0] = math.inf
    assert first(model) == "buffer 2.running_var"


def test_an_activation_is_named_with_its_layer_and_shard():
    model = a_model()
    model[3].value = math.inf
    assert first(model) == "output of 3 (Poisoned) in shard 4"


def test_the_first_of_several_activations_is_named_even_when_others_follow():
    model = a_model()
    model[3].value = math.nan  # ReLU, the last layer and the loss are NaN too
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, math.nan)
    assert first(model) == "output of 3 (Poisoned) in shard 4"


def test_a_batch_of_several_shards_names_them_all():
    model = a_model()
    inner = forward_of(model)

    def forward(batch: Batch) -> torch.Tensor:
        model[3].value = math.nan if batch.first_shard == 5 else None
        return inner(batch)

    assert nonfinite.first(model, BATCHES, forward) == "output of 3 (Poisoned) in shard 5, 6"


def test_the_loss_is_named_when_all_before_it_is_finite():
    assert first(a_model(), factor=math.inf) == "the loss of shard 4"


def test_a_gradient_is_named_when_all_else_is_finite():
    model = a_model()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    model[2].weight.grad[0] = math.nan
    assert first(model) == "gradient of 2.weight (activations and loss are finite)"


def test_looking_leaves_no_hook_behind_even_when_it_fails():
    model = a_model()

    def broken(batch: Batch) -> torch.Tensor:
        raise OSError

    with pytest.raises(OSError):
        nonfinite.first(model, BATCHES, broken)
    model[3].value = math.nan
    first(model)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_worker_without_batches_finds_nothing():
    assert nonfinite.first(a_model(), [], forward_of(a_model())) is None


def test_the_error_tells_step_rank_culprit_and_what_to_do():
    found = nonfinite.error(17, 2, "gradient of 2.weight")
    assert not found.elsewhere
    for told in (
        "step 17",
        "rank 2",
        "gradient of 2.weight",
        "optim.lr",
        "optim.clip_norm",
        "precision.nonfinite=skip",
    ):
        assert told in str(found)
    other = nonfinite.error(17, 0, None)
    assert other.elsewhere and "see the others. Lower" in str(other)
    assert "see the others, or else float16" in str(nonfinite.error(17, 0, None, exchange="float16 was too small"))
