"""The number formats of the built-in precisions."""

from __future__ import annotations

import pytest
import torch

from shoal.step.precisions.bf16 import Bf16
from shoal.step.precisions.fp32 import Fp32
from shoal.step.precisions.fp64 import Fp64

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("precision", "parameters", "products", "losses"),
    [
        (Fp32(), torch.float32, torch.float32, torch.float32),
        (Fp64(), torch.float64, torch.float64, torch.float64),
        (Bf16(), torch.float32, torch.bfloat16, torch.float32),
    ],
    ids=["fp32", "fp64", "bf16"],
)
def test_formats_of_parameters_products_and_losses(precision, parameters, products, losses):
    assert precision.dtype() == parameters
    model = torch.nn.Linear(4, 3).to(precision.dtype())
    with precision.context(CPU):
        logits = model(torch.ones(2, 4, dtype=precision.dtype()))
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1]), reduction="sum")
    assert (logits.dtype, loss.dtype) == (products, losses)


def test_stopping_at_a_non_finite_gradient_is_the_default():
    assert Fp32().nonfinite == Bf16().nonfinite == "stop"
