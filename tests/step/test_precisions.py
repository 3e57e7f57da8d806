"""The number formats of the built-in precisions."""

from __future__ import annotations

import pytest
import torch

from shoal.base.errors import UsageError
from shoal.step.precisions.bf16 import Bf16
from shoal.step.precisions.fp16 import Fp16
from shoal.step.precisions.fp32 import Fp32
from shoal.step.precisions.fp64 import Fp64
from shoal.step.precisions.O0 import O0
from shoal.step.precisions.O1 import O1
from shoal.step.precisions.O2 import O2
from shoal.step.precisions.O3 import O3

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("precision", "parameters", "products", "losses"),
    [
        (Fp32(), torch.float32, torch.float32, torch.float32),
        (Fp64(), torch.float64, torch.float64, torch.float64),
        (Bf16(), torch.float32, torch.bfloat16, torch.float32),
        (Fp16(), torch.float32, torch.float16, torch.float32),
        (O0(), torch.float32, torch.float32, torch.float32),
        (O1(), torch.float32, torch.float16, torch.float32),
        (O2(), torch.float32, torch.float16, torch.float32),
        (O3(), torch.float16, torch.float16, torch.float32),
    ],
    ids=["fp32", "fp64", "bf16", "fp16", "O0", "O1", "O2", "O3"],
)
def test_formats_of_parameters_products_and_losses(precision, parameters, products, losses):
    assert precision.dtype() == parameters
    model, seen = torch.nn.Linear(4, 3).to(precision.dtype()), []
    model.register_forward_hook(lambda module, given, made: seen.append(made.dtype))
    with precision.context(CPU):
        logits = precision.computing(model)(torch.ones(2, 4, dtype=precision.dtype()))
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1]), reduction="sum")
    assert (seen, loss.dtype) == ([products], losses)


def test_stopping_at_a_non_finite_gradient_is_the_default():
    assert Fp32().nonfinite == Bf16().nonfinite == "stop"


class Shared(torch.nn.Module):
    """BatchNorm, and one matrix that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.formats = self.first.weight.dtype, self.norm.weight.dtype, self.second.weight.dtype
        return self.second(self.norm(self.first(x)))


@pytest.mark.parametrize("keep", [True, False])
def test_o2_computes_in_halves_of_masters_that_get_the_gradient(keep: bool):
    torch.manual_seed(0)
    model = Shared()
    names, before = [*model.state_dict()], {name: held.clone() for name, held in model.named_parameters()}
    O2(keep_batchnorm_fp32=keep).computing(model)(torch.randn(5, 4)).square().sum().backward()
    half, kept = torch.float16, torch.float32 if keep else torch.float16
    assert model.formats == (half, kept, half)
    assert [*model.state_dict()] == names
    for name, held in model.named_parameters():
        assert held.dtype == torch.float32 and torch.equal(held, before[name])
        assert held.grad is not None and held.grad.dtype == torch.float32 and held.grad.isfinite().all()
    assert model.norm.running_mean is not None and model.norm.running_mean.any()


def test_a_small_gradient_survives_by_its_loss_scale_alone():
    """1e-6 / 64 is below float16's least number."""
    for scale, arrives in ((1.0, False), (O2().scaler().scale, True)):
        model = torch.nn.Linear(1, 1, bias=False)
        output = O2().computing(model)(torch.tensor([[1 / 64]]))
        (output.sum() * 1e-6 * scale).backward()
        assert (model.weight.grad / scale).item() == pytest.approx(1e-6 / 64 if arrives else 0, rel=1e-2)


def test_a_scale_that_moves_cannot_stop_at_the_first_overflow():
    assert [key for key, _ in O1(nonfinite="stop").faults()] == ["nonfinite"]
    assert O1(nonfinite="stop", loss_scale=128.0).faults() == O3(nonfinite="stop").faults() == []


def test_without_the_hardware_it_falls_back_only_when_told_to():
    with pytest.raises(UsageError, match=r"O2.*no fast float16.*precision=bf16.*unsuited=fp32.*unsuited=slow"):
        O2().suited(CPU)
    fallen, told = O2(unsuited="fp32").suited(CPU)
    assert fallen == Fp32(nonfinite="skip") and told and "fell back to fp32" in told
    slow = O2(unsuited="slow")
    assert slow.suited(CPU)[0] is slow and "slowly" in str(slow.suited(CPU)[1])
