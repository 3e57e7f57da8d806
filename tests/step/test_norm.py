"""Synchronised BatchNorm is torch's over all workers' images together; frozen BatchNorm stays as it is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from a_gang import together
from timm.layers.norm_act import BatchNormAct2d
from torch import nn

from shoal.base.errors import ShoalError
from shoal.step import norm
from shoal.step.gang import Alone

LAYERS = {
    "plain": lambda: nn.BatchNorm2d(3),
    "quick": lambda: nn.BatchNorm2d(3, momentum=0.5, eps=1e-3),
    "cumulative": lambda: nn.BatchNorm2d(3, momentum=None),
    "without weights": lambda: nn.BatchNorm2d(3, affine=False),
    "without memory": lambda: nn.BatchNorm2d(3, track_running_stats=False),
    "timm's": lambda: BatchNormAct2d(3),
    "timm's with drop": lambda: BatchNormAct2d(3, act_layer=nn.SiLU, drop_layer=nn.Identity),
    "of vectors": lambda: nn.BatchNorm1d(3),
}


def a_layer(name: str) -> nn.Module:
    layer = LAYERS[name]().double()
    with torch.no_grad():
        for n, parameter in enumerate(layer.parameters()):
            parameter.copy_(torch.tensor([0.5, 1.0, -2.0]) + n)
    return layer


def inputs_of(name: str, step: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images far from mean 0, and the gradient of the loss by the layer's output."""
    stream = torch.Generator().manual_seed(step)
    shape = (count, 3) if name == "of vectors" else (count, 3, 4, 5)
    return torch.randn(shape, dtype=torch.float64, generator=stream) * 3 + 5, torch.randn(
        shape, dtype=torch.float64, generator=stream
    )


def run(layer: nn.Module, name: str, sizes: list[int], low: int, high: int) -> dict[str, list[torch.Tensor]]:
    """Steps over batches of `sizes`, of which this layer sees the images low … high-1."""
    out: dict[str, list[torch.Tensor]] = {"outputs": [], "inputs": [], "shared": []}
    layer.train()
    for step, size in enumerate(sizes):
        inputs, upstream = (tensor[low:high] for tensor in inputs_of(name, step, size))
        inputs = inputs.clone().requires_grad_()
        layer.zero_grad()
        output = layer(inputs * 1)  # an inner tensor, as in a network: activations may work in place
        output.backward(upstream)
        assert inputs.grad is not None
        out["outputs"].append(output.detach())
        out["inputs"].append(inputs.grad)
        out["shared"] += [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    layer.eval()
    out["outputs"].append(layer(inputs_of(name, 99, 6)[0]).detach()[low:high])
    return out


def close(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def assert_same_memory(one: nn.Module, other: nn.Module) -> None:
    for (name, mine), (theirs_name, theirs) in zip(one.named_buffers(), other.named_buffers(), strict=True):
        assert name == theirs_name and mine.dtype == theirs.dtype
        close(mine, theirs)


@pytest.mark.parametrize("name", LAYERS)
def test_alone_it_is_torchs(name):
    torchs = a_layer(name)
    ours = copy.deepcopy(torchs)
    norm.synchronise(ours, Alone())
    expected, got = (run(layer, name, [6, 2, 9], 0, 9) for layer in (torchs, ours))
    for key in expected:
        assert len(got[key]) == len(expected[key])
        for one, other in zip(got[key], expected[key], strict=True):
            close(one, other)
    assert_same_memory(ours, torchs)


@pytest.mark.parametrize("bounds", [[(0, 3), (3, 6)], [(0, 1), (1, 6)], [(0, 6), (6, 6)], [(0, 2), (2, 3), (3, 6)]])
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "without memory"])
def test_workers_together_are_torchs_on_the_whole_batch(name, bounds):
    torchs = a_layer(name)
    start = copy.deepcopy(torchs)
    expected = run(torchs, name, [6, 6], 0, 6)

    def work(gang):
        layer = copy.deepcopy(start)
        norm.synchronise(layer, gang)
        return layer, run(layer, name, [6, 6], *bounds[gang.rank])

    layers, got = zip(*together(len(bounds), work), strict=True)
    for key in ("outputs", "inputs"):
        for n, whole in enumerate(expected[key]):
            close(torch.cat([each[key][n] for each in got]), whole)
    for n, whole in enumerate(expected["shared"]):
        close(torch.stack([each["shared"][n] for each in got]).sum(0), whole)
    for layer in layers:
        assert_same_memory(layer, torchs)
        for mine, first in zip(layer.buffers(), layers[0].buffers(), strict=True):
            assert torch.equal(mine, first)


def test_a_network_with_a_worker_without_images_gives_the_gradient_of_the_whole_batch():
    torch.manual_seed(0)
    start = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 2), BatchNormAct2d(4), nn.Flatten()
    ).double()
    inputs, _ = inputs_of("plain", 0, 5)

    def work(gang):
        model = copy.deepcopy(start)
        norm.synchronise(model, gang)
        low, high = [(0, 5), (5, 5), (5, 5)][gang.rank]
        model(inputs[low:high]).square().sum().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    start_copy = copy.deepcopy(start)
    start_copy(inputs).square().sum().backward()
    by_rank = together(3, work)
    for n, parameter in enumerate(start_copy.parameters()):
        close(torch.stack([grads[n] for grads in by_rank]).sum(0), parameter.grad)


@pytest.mark.parametrize("counts", [[1], [0], [1, 0], [0, 0, 1]])
def test_one_value_per_channel_is_refused_by_all_and_leaves_the_statistics_alone(counts):
    layers: list[Any] = [nn.BatchNorm2d(2) for _ in counts]

    def work(gang):
        norm.synchronise(layers[gang.rank], gang)
        with pytest.raises(ShoalError, match=f"more than one value per channel.* has {sum(counts)};.*norm=frozen"):
            layers[gang.rank](torch.ones(counts[gang.rank], 2, 1, 1))
        return True

    assert all(together(len(counts), work))
    for layer in layers:
        assert layer.num_batches_tracked == 0
        assert torch.equal(layer.running_mean, torch.zeros(2)) and torch.equal(layer.running_var, torch.ones(2))


def test_one_value_per_channel_at_each_of_two_workers_is_enough():
    values = torch.tensor([[1.0, 5.0], [3.0, 1.0]], dtype=torch.float64)
    torchs = nn.BatchNorm1d(2).double()
    expected = torchs(values).detach()

    def work(gang):
        layer = nn.BatchNorm1d(2).double()
        norm.synchronise(layer, gang)
        return layer(values[gang.rank : gang.rank + 1]).detach(), layer

    (one, layer), (other, _) = together(2, work)
    close(torch.cat([one, other]), expected)
    assert_same_memory(layer, torchs)


def test_bfloat16_inputs_are_summed_and_counted_in_float32():
    inputs = torch.randn(257, 3, 1, 1, generator=torch.Generator().manual_seed(0)).mul(3).add(10).bfloat16()
    layer: Any = nn.BatchNorm2d(3, momentum=1.0)
    norm.synchronise(layer, Alone())
    output = layer(inputs)
    assert output.dtype == torch.bfloat16
    exact = inputs.double()
    torch.testing.assert_close(layer.running_mean.double(), exact.mean((0, 2, 3)), rtol=1e-6, atol=0)
    torch.testing.assert_close(layer.running_var.double(), exact.var((0, 2, 3)), rtol=1e-5, atol=0)
    # The output is the rounding of the exact one: at most half a step of bfloat16 away.
    wanted = (exact - exact.mean((0, 2, 3), keepdim=True)) / (exact.var((0, 2, 3), False, True) + 1e-5).sqrt()
    torch.testing.assert_close(output.double(), wanted, rtol=2**-8, atol=1e-5)


def test_validation_uses_the_running_statistics_and_no_collective():
    layer = nn.BatchNorm2d(3)
    norm.synchronise(layer, None)  # type: ignore[arg-type]
    layer.eval()
    assert layer(torch.ones(1, 3, 1, 1)).shape == (1, 3, 1, 1)


def test_synchronising_keeps_names_and_weights():
    model: Any = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Sequential(BatchNormAct2d(3)))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    norm.synchronise(model, Alone())
    after = model.state_dict()
    assert list(after) == list(before) and all(torch.equal(after[name], before[name]) for name in before)
    assert norm.norms(model) == [model[1], model[2][0]]
    copy.deepcopy(model)(torch.randn(4, 3, 2, 2))


def test_frozen_norms_keep_their_statistics_and_still_learn_their_weights():
    model: Any = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Dropout(0.5), BatchNormAct2d(3)).double()
    with torch.no_grad():
        for layer in (model[1], model[3]):
            layer.running_mean.fill_(0.3)
            layer.running_var.fill_(2.0)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()
    norm.freeze(model)
    inputs = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    model(inputs).sum().backward()
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert model[1].weight.grad is not None and model[1].weight.grad.any()
    assert model[0].training and model[2].training and not model[1].training and not model[3].training
    expected = (model[0](inputs) - 0.3) / (2.0 + 1e-5) ** 0.5
    close(model[1](model[0](inputs)), expected)
