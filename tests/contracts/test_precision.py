"""What every precision must do, the one that is added tomorrow too."""

from __future__ import annotations

import pytest
import torch
from a_part import assert_torch_free, minimal, parts

from shoal.base.errors import UsageError

pytestmark = pytest.mark.parametrize("name", parts("precisions"))
CPU = torch.device("cpu")


def test_a_model_trains_in_it(name):
    precision = minimal("precisions", name)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 3))
    model.to(precision.dtype())
    inputs = torch.randn(5, 1, 4, 4).to(precision.dtype())
    net = precision.computing(model)
    assert [*net.parameters()] == [*model.parameters()]
    with precision.context(CPU):
        logits = net(inputs)
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 0, 1]))
    (loss * precision.scaler().scale).backward()
    assert torch.isfinite(loss)
    for parameter in model.parameters():
        assert parameter.grad is not None and parameter.grad.dtype == parameter.dtype == precision.dtype()
        assert torch.isfinite(parameter.grad).all() and parameter.grad.any()


def test_the_format_is_a_floating_one(name):
    assert minimal("precisions", name).dtype().is_floating_point


def test_a_context_can_be_entered_again_and_leaves_nothing_behind(name):
    precision = minimal("precisions", name)
    before = torch.get_default_dtype()
    for _ in range(2):
        with precision.context(CPU):
            pass
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_default_dtype() == before


@pytest.mark.parametrize("nonfinite", ["stop", "skip"])
def test_what_happens_at_a_non_finite_gradient_can_be_said(name, nonfinite):
    fixed = (
        {"loss_scale": 128.0} if hasattr(minimal("precisions", name), "loss_scale") else {}
    )  # others move by skipping
    assert minimal("precisions", name, nonfinite=nonfinite, **fixed).nonfinite == nonfinite


def test_importing_it_does_not_import_torch(name):
    assert_torch_free("precisions", name)


def test_a_scale_that_finds_its_place_is_told_and_one_of_1_is_not(name):
    scaler = minimal("precisions", name).scaler()
    assert scaler.scale >= 1
    assert scaler.told == (scaler.dynamic or scaler.scale != 1)
    assert scaler is not minimal("precisions", name).scaler()


def test_a_device_it_does_not_suit_is_refused_unless_told_otherwise(name):
    """With `must` False, as for a trained model, something computes."""
    precision = minimal("precisions", name)
    instead = precision.suited(CPU, must=False)[0]
    try:
        assert precision.suited(CPU) == (precision, None)
        assert instead is precision
    except UsageError as error:
        assert "precision.unsuited=fp32" in str(error)
        assert instead.name == "fp32"
