"""Optimizers: which parameters they take, at what rate, and the step itself by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from shoal.base.errors import UsageError
from shoal.step.optims.adamw import Adamw
from shoal.step.optims.muon import Muon
from shoal.step.optims.sgd import Sgd
from shoal.step.optims.timm import Timm
from shoal.step.orthogonal import orthogonalised

ALL = [Sgd(lr=0.1), Adamw(lr=0.1), Muon(lr=0.1), Timm(lr=0.1, opt="lamb")]
NAMES = [optim.name for optim in ALL]


def a_model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)).double()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        inputs = torch.randn(4, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()


# Which parameters


@pytest.mark.parametrize("optim", ALL, ids=NAMES)
def test_frozen_parameters_are_left_out(optim):
    model = a_model()
    model[0].weight.requires_grad_(False)
    optimizer = optim.make(model)
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in model.parameters() if p.requires_grad}
    before = model[0].weight.clone()
    train(model, optimizer, 3)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("optim", ALL, ids=NAMES)
def test_parameters_without_a_gradient_stay_even_under_decay(optim):
    model = a_model()
    optimizer = type(optim)(**{**as_dict(optim), "weight_decay": 0.5}).make(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model[3].parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    still = [torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True)]
    assert still == [True] * 4 + [False] * 2


def as_dict(optim) -> dict:
    return {field: getattr(optim, field) for field in optim.__struct_fields__}


@pytest.mark.parametrize("optim", ALL, ids=NAMES)
def test_decay_norms_tells_whether_biases_and_norms_shrink(optim):
    for decay_norms in (True, False):
        model = a_model()
        for parameter in model.parameters():
            nn.init.ones_(parameter)
            parameter.grad = torch.zeros_like(parameter)  # nothing but the decay moves them
        options = {**as_dict(optim), "weight_decay": 0.5, "decay_norms": decay_norms}
        type(optim)(**options).make(model).step()
        moved = {name for name, parameter in model.named_parameters() if not (parameter == 1).all()}
        weights = {"0.weight", "3.weight"}
        assert moved == ({name for name, _ in model.named_parameters()} if decay_norms else weights)


def test_a_model_of_norms_or_of_weights_alone_can_be_trained():
    for model in (nn.BatchNorm2d(2), nn.Linear(2, 2, bias=False)):
        optimizer = Sgd(lr=0.1, weight_decay=0.1, decay_norms=False).make(model)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()


# Rates


def test_the_rate_follows_the_batch_only_where_its_batch_is_told():
    assert Sgd(lr=0.1).peak(4096) == 0.1
    assert Sgd(lr=0.1, lr_batch=256).peak(256) == 0.1
    assert Sgd(lr=0.1, lr_batch=256).peak(1024) == 0.4
    assert Sgd(lr=0.1, lr_batch=256).peak(64) == 0.025


@pytest.mark.parametrize("optim", ALL, ids=NAMES)
def test_a_rate_of_zero_moves_nothing(optim):
    model = a_model()
    optimizer = optim.make(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    train(model, optimizer, 2)
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))


# The step


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_is_the_momentum_step_of_the_textbook(momentum, nesterov, decay):
    model = a_model()
    by_hand = [parameter.detach().clone() for parameter in model.parameters()]
    velocity = [torch.zeros_like(parameter) for parameter in by_hand]
    optimizer = Sgd(lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=decay).make(model)
    for step, lr in enumerate([0.1, 0.05, 0.2, 0.0, 0.01]):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for n, parameter in enumerate(model.parameters()):
            stream = torch.Generator().manual_seed(100 * step + n)
            parameter.grad = torch.randn(parameter.shape, dtype=torch.float64, generator=stream)
            gradient = parameter.grad + decay * by_hand[n]
            velocity[n] = momentum * velocity[n] + gradient
            by_hand[n] = by_hand[n] - lr * (gradient + momentum * velocity[n] if nesterov else velocity[n])
        optimizer.step()
        for parameter, expected in zip(model.parameters(), by_hand, strict=True):
            torch.testing.assert_close(parameter.detach(), expected, rtol=1e-12, atol=1e-12)


def test_adamw_is_the_step_of_its_paper():
    model = nn.Linear(3, 2).double()
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    first, second = [[torch.zeros_like(weight) for weight in weights] for _ in range(2)]
    optim = Adamw(lr=0.01, beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.1)
    optimizer = optim.make(model)
    for step in range(1, 6):
        for n, parameter in enumerate(model.parameters()):
            g = torch.randn(parameter.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9 * step + n))
            parameter.grad = g
            first[n] = 0.8 * first[n] + 0.2 * g
            second[n] = 0.95 * second[n] + 0.05 * g * g
            upward = (first[n] / (1 - 0.8**step)) / ((second[n] / (1 - 0.95**step)).sqrt() + 1e-6)
            weights[n] = weights[n] * (1 - 0.01 * 0.1) - 0.01 * upward
        optimizer.step()
        for parameter, expected in zip(model.parameters(), weights, strict=True):
            torch.testing.assert_close(parameter.detach(), expected, rtol=1e-12, atol=1e-12)


@given(rows=st.integers(1, 12), columns=st.integers(1, 40), seed=st.integers(0, 99))
def test_orthogonalised_keeps_the_directions_and_levels_their_lengths(rows, columns, seed):
    matrix = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    left, lengths, right = torch.linalg.svd(matrix, full_matrices=False)
    turned = left.T @ orthogonalised(matrix) @ right.T
    torch.testing.assert_close(turned, turned.diagonal().diag(), rtol=0, atol=1e-9)
    certain = turned.diagonal()[lengths > 1e-2 * lengths.norm()]
    assert certain.min() > 0.5 and certain.max() < 1.3


def test_muon_turns_kernels_and_trains_the_rest_as_nesterov_does():
    turned, plain = a_model(), a_model()
    muon = Muon(lr=0.02, sgd_lr=0.1, sgd_momentum=0.8, weight_decay=0.01).make(turned)
    sgd = Sgd(lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.01).make(plain)
    velocity = torch.zeros(2, 9, dtype=torch.float64)
    kernel = turned[0].weight.detach().flatten(1)
    for step in range(4):
        for n, pair in enumerate(zip(turned.parameters(), plain.parameters(), strict=True)):
            stream = torch.Generator().manual_seed(100 * step + n)
            pair[0].grad = pair[1].grad = torch.randn(pair[0].shape, dtype=torch.float64, generator=stream)
        gradient = turned[0].weight.grad.flatten(1)
        velocity = 0.95 * velocity + gradient
        kernel = kernel * (1 - 0.02 * 0.01) - 0.02 * orthogonalised(gradient + 0.95 * velocity)
        muon.step()
        sgd.step()
        torch.testing.assert_close(turned[0].weight.detach().flatten(1), kernel, rtol=1e-12, atol=1e-12)
        for name, parameter in list(plain.named_parameters())[1:]:
            torch.testing.assert_close(turned.get_parameter(name), parameter, rtol=1e-12, atol=1e-12)


def test_muon_keeps_kernels_at_their_norm_when_asked_to():
    model = a_model()
    train(model, Muon(lr=0.1, fixed_norm=True, weight_decay=0.5).make(model), 3)
    assert model[0].weight.norm().item() == pytest.approx(2**0.5, rel=1e-12)


def test_muons_rates_are_kept_apart_whatever_sets_them():
    rates = {group["lr"]: group.get("lr_scale") for group in Muon(lr=0.02, sgd_lr=0.1).make(a_model()).param_groups}
    assert rates == {0.02: 1.0, 0.1: 5.0}
    assert [key for key, _ in Muon(lr=0.0).faults()] == ["lr"]


def test_nesterov_without_momentum_is_a_fault():
    assert Sgd(lr=0.1, momentum=0.0, nesterov=True).faults() == [("nesterov", "needs a momentum above 0")]
    assert Sgd(lr=0.1, momentum=0.9, nesterov=True).faults() == []


# timm


def test_timms_optimizers_come_by_name_with_their_own_options():
    optimizer = Timm(lr=0.1, opt="nadamw", weight_decay=0.3, options={"betas": [0.5, 0.6]}).make(a_model())
    assert type(optimizer).__name__ == "NAdamW"
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"], tuple(group["betas"])) == (0.1, 0.3, (0.5, 0.6))


def test_an_unknown_optimizer_is_named_with_the_nearest_one():
    with pytest.raises(UsageError, match=r"optim\.opt: no timm optimizer called 'lamp'; did you mean 'lamb'\?"):
        Timm(lr=0.1, opt="lamp").make(a_model())


@pytest.mark.parametrize("options", [{"bets": 1}, {"betas": [2.0, 0.9]}])
def test_options_that_do_not_fit_are_told(options):
    with pytest.raises(UsageError, match=r"optim\.options: nadamw does not take them \(.+\)"):
        Timm(lr=0.1, opt="nadamw", options=options).make(a_model())


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_an_optimizer_that_this_machine_cannot_run_is_told():
    with pytest.raises(UsageError, match=r"optim\.opt: fusedadam cannot be used here \(.*CUDA"):
        Timm(lr=0.1, opt="fusedadam").make(a_model())
