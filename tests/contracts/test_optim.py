"""What every optimizer must do, the one that is added tomorrow too."""

from __future__ import annotations

import pytest
import torch
from a_part import assert_torch_free, minimal, parts
from torch import nn

pytestmark = pytest.mark.parametrize("name", parts("optims"))


class Bowl(nn.Module):
    """A quadratic with its lowest point at 0, steeper along one axis than along another."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64))
        self.bias = nn.Parameter(torch.tensor([1.0, -1.0], dtype=torch.float64))

    def forward(self) -> torch.Tensor:
        return (self.weight.square() * torch.tensor([1.0, 0.2])).sum() + self.bias.square().sum()


def descend(bowl: Bowl, optimizer: torch.optim.Optimizer, steps: int) -> float:
    for _ in range(steps):
        optimizer.zero_grad()
        loss = bowl()
        loss.backward()
        optimizer.step()
    return float(bowl().detach())


def test_it_goes_downhill(name):
    bowl = Bowl()
    before = float(bowl().detach())
    assert descend(bowl, minimal("optims", name, lr=0.02).make(bowl), 200) < 0.5 * before


def test_it_trains_all_that_is_trainable_and_nothing_else(name):
    bowl = Bowl()
    bowl.bias.requires_grad_(False)
    kept = bowl.bias.clone()
    optimizer = minimal("optims", name, lr=0.02, weight_decay=0.1, decay_norms=False).make(bowl)
    descend(bowl, optimizer, 2)
    assert torch.equal(bowl.bias, kept)
    assert [id(p) for group in optimizer.param_groups for p in group["params"]] == [id(bowl.weight)]


def test_the_rate_can_be_set_at_every_step(name):
    bowl = Bowl()
    optimizer = minimal("optims", name, lr=0.02).make(bowl)
    descend(bowl, optimizer, 1)
    kept = bowl.weight.detach().clone()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    descend(bowl, optimizer, 1)
    assert torch.equal(bowl.weight, kept)


def test_a_restored_state_goes_on_with_the_same_bits(name):
    whole, part = Bowl(), Bowl()
    optim = minimal("optims", name, lr=0.02, weight_decay=0.01)
    descend(whole, optim.make(whole), 6)
    first = optim.make(part)
    descend(part, first, 3)
    resumed = Bowl()
    resumed.load_state_dict(part.state_dict())
    second = optim.make(resumed)
    second.load_state_dict(first.state_dict())
    descend(resumed, second, 3)
    assert torch.equal(resumed.weight, whole.weight) and torch.equal(resumed.bias, whole.bias)


def test_importing_it_does_not_import_torch(name):
    assert_torch_free("optims", name)
