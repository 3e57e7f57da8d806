"""Pieces of a gradient leave when the backward pass has made them, and each once."""

from __future__ import annotations

import torch
from torch import nn

from shoal.strategies.replicated.buckets import Buckets
from shoal.strategies.replicated.gradients import FlatGradients


def test_pieces_leave_in_the_order_of_the_backward_pass_and_final():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)).double()
    parameters = list(net.parameters())
    flat = FlatGradients(parameters).flat
    given: list[tuple[int, int, torch.Tensor]] = []
    buckets = Buckets(parameters, lambda low, high: given.append((low, high, flat[low:high].clone())), size=64)
    images = torch.randn(3, 4, dtype=torch.float64)
    for last in (False, True, False):
        if last:
            buckets.arm()
        net(images).square().sum().backward()
        if not last:
            continue
        buckets.flush()
        pieces, expected = list(given), flat.clone()
        assert [(low, high) for low, high, _ in pieces] == [(112, 202), (40, 112), (0, 40)]
        assert torch.equal(torch.cat([piece for _, _, piece in reversed(pieces)]), expected)
    assert len(given) == len(pieces)
    buckets.flush()
    assert len(given) == len(pieces)


def test_a_piece_leaves_before_the_backward_pass_has_ended():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    FlatGradients(net.parameters())
    order: list[str] = []
    net[0].weight.register_hook(lambda grad: order.append("first layer"))
    buckets = Buckets(list(net.parameters()), lambda low, high: order.append(f"{low}"), size=20)
    buckets.arm()
    net(torch.randn(2, 4)).sum().backward()
    assert order == ["20", "first layer", "0"]


def test_what_has_no_part_in_the_loss_leaves_at_the_end():
    net = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    FlatGradients(net.parameters())
    given: list[tuple[int, int]] = []
    buckets = Buckets(list(net.parameters()), lambda low, high: given.append((low, high)), size=6)
    buckets.arm()
    net[0](torch.ones(1, 2)).sum().backward()
    assert given == [(0, 6)]
    buckets.flush()
    assert given == [(0, 6), (6, 12)]
