"""An optimizer that gets each batch in several pushes goes as far as one that gets it at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shoal.kvstore.layout import Layout
from shoal.kvstore.updater import Updater, describe, from_torch, to_torch
from shoal.strategies.replicated.pace import Pace

LAYOUT = Layout(("weight",), ((3,),), ((1,),), dtype="float64")
GRADIENT = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def stepped(described: dict[str, Any], gradients: list[torch.Tensor], lr: float) -> tuple[list[torch.Tensor], Updater]:
    """Where the weights are after each gradient."""
    values, gradient = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    updater, found = Updater(described, LAYOUT, 0, values, gradient), []
    for one in gradients:
        gradient.copy_(one)
        updater.step(lr)
        found.append(values.clone())
    return found, updater


def sgd(**options: Any) -> dict[str, Any]:
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    return describe(torch.optim.SGD([weight], lr=0.1, **options), [weight])


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("pushes", [2, 4, 7])
def test_pushes_of_a_batch_go_as_far_as_one_step(pushes: int, nesterov: bool):
    described = sgd(momentum=0.9, nesterov=nesterov)
    whole, _ = stepped(described, [GRADIENT] * 400, 0.1)
    pace = Pace(described, pushes)
    parts, _ = stepped(pace.described, [GRADIENT / pushes] * pushes * 400, 0.1 * pace.rate)
    torch.testing.assert_close(parts[-1] - parts[-1 - pushes], whole[-1] - whole[-2], rtol=1e-12, atol=0)


@pytest.mark.parametrize("pushes", [1, 4])
def test_what_a_push_does_at_once_and_later(pushes: int):
    """nu = m, beta = m^(1/pushes), the rate 1 / (1 - m): the weights that past gradients have in a step."""
    m, before = 0.9, [torch.zeros(3, dtype=torch.float64)]
    pace = Pace(sgd(momentum=m, nesterov=True), pushes)
    nothing = torch.zeros_like(GRADIENT)
    found, _ = stepped(pace.described, [nothing, GRADIENT, *[nothing] * 30], 1.0)
    moved = [(a - b)[0].item() for a, b in zip([before[0], *found], found, strict=False)]
    beta = m ** (1 / pushes)
    expected = [(1 - m) + m * (1 - beta), *(m * (1 - beta) * beta**age for age in range(1, 31))]
    assert moved[0] == 0.0
    assert moved[1:] == pytest.approx([one / (1 - m) for one in expected], rel=1e-12)


def test_weights_decay_once_a_batch_and_others_step_a_part_of_the_rate():
    groups = [{"lr": 0.1, "weight_decay": 0.4}, {"lr": 0.1}]
    pace = Pace({"name": "sgd", "groups": groups}, pushes=4)
    assert (pace.described["groups"], pace.rate) == ([{"lr": 0.1, "weight_decay": 0.1}, {"lr": 0.1}], 1.0)
    described = {"name": "adamw", "groups": [{"lr": 0.1, "weight_decay": 0.4}]}
    pace = Pace(described, pushes=4)
    assert (pace.described, pace.rate) == (described, 0.25)


def test_one_push_a_batch_leaves_the_optimizer_as_it_is():
    described = sgd(momentum=0.9, weight_decay=5e-4)
    pace = Pace(described, 1)
    assert (pace.described, pace.rate) == (described, 1.0)


@pytest.mark.parametrize("nesterov", [True, False])
def test_a_checkpoint_is_of_whole_steps(nesterov: bool):
    """What momentum still has to move is the same before and after a resume with another mode."""
    described = sgd(momentum=0.9, nesterov=nesterov, weight_decay=0.01)
    pace = Pace(described, 4)
    _, updater = stepped(described, [GRADIENT], 1.0)
    saved = to_torch(updater.state(), described, LAYOUT)
    saved["param_groups"][0]["lr"] = 0.07
    pushed = pace.to_push(saved)
    assert {key: pushed["param_groups"][0][key] for key in pace.described["groups"][0] if key != "params"} == {
        key: value for key, value in pace.described["groups"][0].items() if key != "params"
    } | {"lr": 0.07}

    def left(described: dict[str, Any], state: dict[str, Any], steps: int) -> torch.Tensor:
        """How far the weights go without any further gradient."""
        bare = described | {"groups": [group | {"weight_decay": 0.0} for group in described["groups"]]}
        values, gradient = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        updater = Updater(bare, LAYOUT, 0, values, gradient)
        updater.load(from_torch(state, described, LAYOUT))
        for _ in range(steps):
            updater.step(1.0)
        return values

    torch.testing.assert_close(left(pace.described, pushed, 4000), left(described, saved, 1000), rtol=1e-12, atol=0)
    again = pace.to_step(pushed)
    assert again["param_groups"] == saved["param_groups"]
    torch.testing.assert_close(
        again["state"][0]["momentum_buffer"], saved["state"][0]["momentum_buffer"], rtol=1e-15, atol=0
    )
    assert again["state"].keys() == saved["state"].keys() == {0}
