"""Where models are cut, that the parts are the whole, and what is said of models that cannot be cut."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from shoal import models
from shoal.base.errors import UsageError
from shoal.models import Model
from shoal.strategies.divided.anatomy import Anatomy, Boundary, Call
from shoal.strategies.divided.balance import balanced
from shoal.strategies.divided.carving import run
from shoal.strategies.divided.cutting import Cuts, _pieces, _weighty, cut


def cut_of(model: nn.Module, stages: int, inputs: torch.Tensor) -> Cuts:
    return cut(model, stages, inputs, nullcontext, lambda model: model.train())


@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        ("cifar-preresnet8", 16, {}),
        ("resnet18", 32, {}),
        ("vit_tiny_patch16_224", 32, {"img_size": 32, "depth": 3}),
        (
            "swin_tiny_patch4_window7_224",
            32,
            {"img_size": 32, "window_size": 4, "depths": (1, 1, 2, 1), "embed_dim": 24},
        ),
    ],
)
def test_parts_are_the_whole_bit_for_bit(name: str, size: int, options: dict):
    """Logits, gradients, names, running statistics: in the mode of a training."""
    whole = models.create(Model(name=name, options=options), classes=5, channels=3, seed=1).module.train()
    inputs = torch.randn(2, 3, size, size)
    cuts = Cuts.from_bytes(cut_of(whole, 3, inputs).to_bytes())
    parts = [cuts.carve(copy.deepcopy(whole), stage, (3, size, size)) for stage in range(3)]
    logits, passed = whole(inputs), inputs
    for part in parts:
        passed = run(part, passed.clone())
    for made in (logits, passed):
        made.square().sum().backward()
    assert torch.equal(logits, passed)
    own = [name for part in parts for name, _ in part.named_parameters()]
    assert sorted(own) == sorted(name for name, _ in whole.named_parameters())
    assert all(any(held.requires_grad for held in part.parameters()) for part in parts)
    for part in parts:
        for name, held in part.named_parameters():
            expected = whole.get_parameter(name).grad
            assert (held.grad is None and expected is None) or torch.equal(held.grad, expected)  # type: ignore[arg-type]
        assert all(torch.equal(whole.get_buffer(name), held) for name, held in part.named_buffers())


class Around(nn.Module):
    """Something of its input goes past all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x)) + x)


def test_a_cut_that_something_goes_past_is_not_used():
    cuts = cut_of(Around(), 2, torch.randn(2, 4))
    assert [boundary.name for boundary in cuts.boundaries] == ["head"]
    with pytest.raises(UsageError, match=r"Around cannot be cut into 3 stages: not before second .*use fewer stages"):
        cut_of(Around(), 3, torch.randn(2, 4))


def test_a_model_with_too_few_layers_is_refused_by_their_names():
    with pytest.raises(UsageError, match="into 4 stages: between 0 and 3 it has 3 places to cut"):
        cut_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU()), 4, torch.randn(2, 4))


def test_the_slowest_stage_is_as_fast_as_can_be():
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(6)))
    calls = {str(number): Call(str(number), 2 * number + 1, 2 * number + 2) for number in range(6)}
    boundaries = [Boundary(str(number), (1,), torch.float32, False, float(number)) for number in range(1, 6)]
    anatomy = Anatomy(calls, boundaries, rest_s=5.0)
    # Pieces of 1, 2, 3, 4, 5 and 5 seconds.
    row = _pieces(anatomy), _weighty(model, anatomy)
    assert balanced(row[0], 2, row[1]) == [3]  # 10 and 10
    assert balanced(row[0], 3, row[1]) in ([2, 3], [2, 4])  # at most 9
    assert balanced(row[0], 7, row[1]) is None
