"""What `monitor` sees of weights and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.train.monitored import Monitored


def test_every_trainable_tensor_with_its_gradient():
    model = nn.Linear(3, 2)
    model.bias.requires_grad = False
    nn.init.constant_(model.weight, -2.0)
    assert Monitored(model).figures == [{"name": "weight", "weight_rms": 2.0, "gradient_rms": None}]
    model.weight.grad = torch.tensor([[3.0, 0, 0], [0, 4.0, 0]])
    seen = Monitored(model)
    assert seen.figures[0]["gradient_rms"] == pytest.approx((25 / 6) ** 0.5, abs=1e-12)
    assert set(seen.histograms) == {"weights/weight", "gradients/weight"}
    of = seen.histograms["gradients/weight"]
    assert (of.least, of.most, of.count, of.total, of.squares) == (0, 4, 6, 7, 25)
    assert sum(of.buckets) == 6 and of.buckets[0] == 4 and of.limits[-1] == 4


def test_what_is_no_number_is_left_out_and_told():
    model = nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.tensor([[1.0, torch.nan]])
    seen = Monitored(model)
    assert seen.figures[0]["gradient_rms"] is None
    assert seen.histograms["gradients/weight"].count == 1
