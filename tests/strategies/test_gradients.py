"""One flat tensor for all gradients, in which backward passes add up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shoal.strategies.replicated.gradients import FlatGradients


def model(layout: torch.memory_format = torch.contiguous_format) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(5, 2)).double()
    return net.to(memory_format=layout)


def images() -> Tensor:
    return torch.randn(2, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_backward_passes_add_into_the_flat_tensor():
    plain, held = model(), model()
    flat = FlatGradients(held.parameters()).flat
    for net in (plain, held):
        for weight in (1.0, 2.0):
            (weight * net(images()).square().sum()).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in plain.parameters() if p.grad is not None])
    assert torch.equal(flat, expected)
    flat.zero_()
    assert all(p.grad is not None and not p.grad.any() for p in held.parameters())


def test_gradients_lie_in_memory_as_their_parameters_do():
    plain, held = model(), model(torch.channels_last)
    flat = FlatGradients(held.parameters()).flat
    weight = held[1].weight
    assert weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    for net in (plain, held):
        net(images()).square().sum().backward()
    low, high = flat.data_ptr(), flat.data_ptr() + flat.numel() * flat.element_size()
    for mine, other in zip(held.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None and other.grad is not None
        assert mine.grad.stride() == mine.stride()
        assert low <= mine.grad.data_ptr() < high  # still a piece of the flat tensor
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-12, atol=1e-12)


def test_loading_weights_leaves_the_pieces_where_they_are():
    net = model()
    flat = FlatGradients(net.parameters()).flat
    net.load_state_dict(model(torch.channels_last).state_dict())
    net(images()).sum().backward()
    assert torch.equal(flat, torch.cat([p.grad.reshape(-1) for p in net.parameters() if p.grad is not None]))


def test_weights_that_have_no_dense_layout_get_their_share():
    weight = nn.Parameter(torch.randn(6, 4, dtype=torch.float64)[:, ::2])
    flat = FlatGradients([weight]).flat
    (weight * torch.arange(12.0, dtype=torch.float64).view(6, 2)).sum().backward()
    assert torch.equal(flat, torch.arange(12.0, dtype=torch.float64))


def test_frozen_parameters_have_no_place():
    net = model()
    net[0].requires_grad_(False)
    flat = FlatGradients(net.parameters()).flat
    assert len(flat) == sum(p.numel() for p in net.parameters() if p.requires_grad)
    assert net[0].weight.grad is None
