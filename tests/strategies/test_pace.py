"""An optimizer that gets each batch in several pushes goes as far as one that gets it at once."""

from __future__ import annotations

from typing import Any

import pytest
import timm.optim
import torch

from shoal.kvstore.layout import Layout
from shoal.kvstore.updater import Updater, describe, from_torch, to_torch
from shoal.step.orthogonal import OrthogonalSgd
from shoal.strategies.replicated.pace import Pace

LAYOUT = Layout(("weight",), ((3,),), ((1,),), dtype="float64")
GRADIENT = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
NOTHING = torch.zeros(3, dtype=torch.float64)
MAKERS = {
    "sgd": lambda weights, **options: torch.optim.SGD(weights, lr=0.1, **options),
    "sgd, fused": lambda weights, **options: torch.optim.SGD(weights, lr=0.1, fused=True, **options),
    "sgdw": lambda weights, **options: timm.optim.SGDW(weights, lr=0.1, **options),
}


def described(kind: str = "sgd", **options: Any) -> dict[str, Any]:
    weight = torch.nn.Parameter(NOTHING.clone())
    return describe(MAKERS[kind]([weight], **options), [weight])


def updater(described: dict[str, Any]) -> Updater:
    return Updater(described, LAYOUT, 0, NOTHING.clone(), NOTHING.clone())


def stepped(updater: Updater, gradients: list[torch.Tensor], lr: float) -> list[torch.Tensor]:
    """How far each gradient moves the weights."""
    (piece,) = updater._pieces
    assert piece.parameter.grad is not None
    moved = []
    for one in gradients:
        before = piece.parameter.detach().clone()
        piece.parameter.grad.copy_(one)
        updater.step(lr)
        moved.append(piece.parameter.detach() - before)
    return moved


def stepped_once(of: dict[str, Any]) -> Updater:
    made = updater(of)
    stepped(made, [GRADIENT], 1.0)
    return made


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("pushes", [2, 4, 7])
@pytest.mark.parametrize("kind", MAKERS)
def test_pushes_of_a_batch_go_as_far_as_one_step(kind: str, pushes: int, nesterov: bool):
    at_once = described(kind, momentum=0.9, nesterov=nesterov)
    whole = stepped(updater(at_once), [GRADIENT] * 400, 0.1)
    parts = stepped(updater(Pace(at_once, pushes, 1).described), [GRADIENT / pushes] * pushes * 400, 0.1)
    torch.testing.assert_close(sum(parts[-pushes:]), whole[-1], rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(("nesterov", "at_once"), [(True, 1.9), (False, 1.0)])
@pytest.mark.parametrize(("pushes", "workers", "lasting"), [(1, 1, 1), (2, 1, 2), (4, 1, 4), (4, 2, 4), (4, 4, 8)])
def test_what_a_push_does_at_once_and_later(
    pushes: int, workers: int, lasting: int, nesterov: bool, at_once: float, kind: str
):
    """As much as a whole step at once, and the rest falls by beta = m^(1/lasting); the first push, too."""
    m = 0.9
    pace = Pace(described(kind, momentum=m, nesterov=nesterov), pushes, workers)
    moved = stepped(updater(pace.described), [GRADIENT, *[NOTHING] * 30], 1.0)
    beta = m ** (1 / lasting)
    rest = 1 / (1 - m) - at_once
    expected = [at_once, *(rest * (1 - beta) * beta**age for age in range(30))]
    assert [-step[0].item() for step in moved] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("lr_times_curvature", "most"), [(0.1, 0.8), (0.2, 0.95), (0.4, 1.4), (0.75, 20)])
@pytest.mark.parametrize(("pushes", "workers"), [(2, 2), (4, 4), (8, 8)])
def test_how_stale_pushes_answer_to_noise(pushes: int, workers: int, lr_times_curvature: float, most: float):
    """Squared displacement, summed over time, by the noise of one shard's gradient on a quadratic: workers by turns.
    Where curvature is small, less than in a step; where it is large, still falling."""
    at_once = described(momentum=0.9, nesterov=True)

    def answer(of: dict[str, Any], parts: int, stale: int) -> float:
        made = updater(of)
        weights = made._pieces[0].parameter.detach()
        seen, total = [weights.clone()] * (stale + 1), 0.0
        for push in range(200 * parts):
            noise = GRADIENT / pushes if push == 0 else NOTHING
            stepped(made, [lr_times_curvature / parts * seen[-1 - stale] + noise], 1.0)
            seen = [*seen[-stale:], weights.clone()] if stale else [weights.clone()]
            total += weights.square().sum().item() / parts
        return total

    whole = answer(at_once, 1, 0)
    assert 0.7 * whole < answer(Pace(at_once, pushes, workers).described, pushes, workers - 1) < most * whole


def test_weights_decay_once_a_batch():
    group = Pace(described(weight_decay=0.4), 4, 1).described["groups"][0]
    assert group["weight_decay"] == 0.1 and "lr_scale" not in group
    group = Pace(described(momentum=0.9, weight_decay=0.4), 4, 1).described["groups"][0]
    assert group["weight_decay"] == 0.1, "a part of the gradient"
    group = Pace(described("sgdw", momentum=0.9, weight_decay=0.4), 4, 1).described["groups"][0]
    assert group["weight_decay"] * group["lr_scale"] == pytest.approx(0.1)
    corrected = described("sgdw", momentum=0.9, weight_decay=0.4, corrected_weight_decay=True)  # by the rate's square
    group = Pace(corrected, 4, 1).described["groups"][0]
    assert group["weight_decay"] * group["lr_scale"] ** 2 == pytest.approx(0.1)


def test_others_take_steps_of_a_part_of_the_rate():
    weights = [torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(2))]
    adamw = describe(torch.optim.AdamW([{"params": weights[:1]}, {"params": weights[1:], "lr_scale": 0.5}]), weights)
    assert [group["lr_scale"] for group in Pace(adamw, 4, 1).described["groups"]] == [0.25, 0.125]
    kinds = [{"params": weights[:1], "orthogonal": True}, {"params": weights[1:], "weight_decay": 0.2}]
    muon = describe(OrthogonalSgd(kinds, lr=0.1, momentum=0.9), weights)
    turned, descending = Pace(muon, 4, 1).described["groups"]
    assert (turned["lr_scale"], descending["lr_scale"], descending["weight_decay"]) == (0.25, 1.0, 0.05)


def test_one_push_a_batch_leaves_the_optimizer_and_its_state_as_they_are():
    at_once = described(momentum=0.9, weight_decay=5e-4)
    pace = Pace(at_once, 1, 1)
    state = to_torch(stepped_once(at_once).state(), at_once, LAYOUT)
    assert pace.described == at_once
    assert pace.to_push(state)["state"][0]["momentum_buffer"] is state["state"][0]["momentum_buffer"]


@pytest.mark.parametrize("position", [int, str])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("own", [{}, {"lr_scale": 0.5}, {"lr_scale": 0.0}], ids=["", "slower", "at rest"])
def test_a_checkpoint_is_of_whole_steps(kind: str, nesterov: bool, position: type, own: dict[str, float]):
    """What momentum still has to move is the same before and after a resume with another mode."""
    at_once = described(kind, momentum=0.9, nesterov=nesterov, weight_decay=0.01)
    at_once["groups"][0] |= own
    pace = Pace(at_once, 4, 1)
    saved = to_torch(stepped_once(at_once).state(), at_once, LAYOUT)
    saved["param_groups"][0]["lr"] = 0.07
    saved["state"] = {position(key): value for key, value in saved["state"].items()}
    pushed = pace.to_push(saved)
    assert pushed["param_groups"][0] == {**pace.described["groups"][0], "lr": 0.07}

    def left(of: dict[str, Any], state: dict[str, Any], steps: int) -> torch.Tensor:
        """How far the weights go without any further gradient."""
        made = updater(of | {"groups": [group | {"weight_decay": 0.0} for group in of["groups"]]})
        made.load(from_torch(state, of, LAYOUT))
        return sum(stepped(made, [NOTHING] * steps, 1.0), NOTHING)

    torch.testing.assert_close(left(pace.described, pushed, 4000), left(at_once, saved, 1000), rtol=1e-12, atol=0)
    again = pace.to_step(pushed)
    assert again["param_groups"] == saved["param_groups"] and again["state"].keys() == saved["state"].keys()
    buffers = (state["state"][position(0)]["momentum_buffer"] for state in (again, saved))
    torch.testing.assert_close(*buffers, rtol=1e-15, atol=0)


@pytest.mark.parametrize(
    "of",
    [
        described("sgdw", momentum=0.0, weight_decay=0.1),
        describe(torch.optim.AdamW([weight := torch.nn.Parameter(NOTHING.clone())]), [weight]),
        describe(torch.optim.RMSprop([weight := torch.nn.Parameter(NOTHING.clone())], momentum=0.5), [weight]),
    ],
    ids=lambda of: of["name"],
)
def test_other_state_stays(of: dict[str, Any]):
    pace = Pace(of, 4, 1)
    torch_has = to_torch(stepped_once(of).state(), of, LAYOUT)
    torch_has["state"] = torch_has["state"] or {0: {"momentum_buffer": None}}  # as timm leaves it without momentum
    again = pace.to_step(pace.to_push(torch_has))
    assert again == {"state": torch_has["state"], "param_groups": torch_has["param_groups"]}
