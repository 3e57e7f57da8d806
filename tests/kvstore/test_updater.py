"""An optimizer over a cut flat tensor makes the steps that it would make over whole tensors."""

from __future__ import annotations

import msgspec
import pytest
import timm.optim
import torch
from torch import nn

from shoal.base.errors import UsageError
from shoal.kvstore.layout import Layout
from shoal.kvstore.updater import Updater, describe, elementwise, from_torch, named, register, to_torch


def net() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(20, 7)).double()
    return model.to(memory_format=torch.channels_last)


def groups(model: nn.Module) -> list[dict]:
    return [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]


MAKERS = {
    "sgd": lambda model: torch.optim.SGD(groups(model), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adamw": lambda model: torch.optim.AdamW(groups(model), lr=0.1, weight_decay=0.1, fused=True),
    "rprop": lambda model: torch.optim.Rprop(model.parameters(), lr=0.1),
    "adafactor": lambda model: torch.optim.Adafactor(groups(model), lr=0.1, weight_decay=0.1),
    "timm.lion": lambda model: timm.optim.Lion(groups(model), lr=0.1, weight_decay=0.1),
    "timm.lamb": lambda model: timm.optim.Lamb(groups(model), lr=0.1, max_grad_norm=None),
    "timm.lars": lambda model: timm.optim.Lars(groups(model), lr=0.1, momentum=0.9, weight_decay=0.1),
}


def flatten(layout: Layout, tensors: list[torch.Tensor]) -> torch.Tensor:
    flat = torch.zeros(layout.size, dtype=layout.kind)
    for number, tensor in enumerate(tensors):
        layout.view(flat, number).copy_(tensor)
    return flat


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_steps_and_state_are_those_of_one_process(name, servers):
    model = net()
    optimizer = MAKERS[name](model)
    parameters = list(model.parameters())
    told = msgspec.json.decode(msgspec.json.encode(describe(optimizer, parameters)))
    assert told["name"] == name
    layout = Layout.of(list(model.named_parameters()), whole=not elementwise(told))
    values = flatten(layout, parameters)
    gradient = torch.zeros_like(values)
    cut = layout.cut(servers)
    assert [low for low, _ in cut[1:]] == [high for _, high in cut[:-1]] and cut[-1][1] == layout.size

    def updaters() -> list[Updater]:
        return [Updater(told, layout, low, values[low:high], gradient[low:high]) for low, high in cut]

    shards = updaters()
    for step in range(4):
        lr = 0.1 / (step + 1)
        for group in optimizer.param_groups:
            group["lr"] = lr
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        gradient.copy_(flatten(layout, [parameter.grad for parameter in parameters]))
        optimizer.step()
        for shard in shards:
            shard.step(lr)
        for number, parameter in enumerate(parameters):
            torch.testing.assert_close(layout.view(values, number), parameter.detach(), rtol=1e-12, atol=1e-12)
        pieces = {key: value for shard in shards for key, value in shard.state().items()}
        whole = to_torch(pieces, told, layout)
        expected = optimizer.state_dict()
        assert whole["state"].keys() == expected["state"].keys()
        for number, held in expected["state"].items():
            for key, value in held.items():
                if value is not None:
                    torch.testing.assert_close(
                        whole["state"][number][key], torch.as_tensor(value), rtol=1e-12, atol=1e-12
                    )
        assert [group["params"] for group in whole["param_groups"]] == [
            group["params"] for group in expected["param_groups"]
        ]
        shards = updaters()  # a restart: the state goes through torch's form and back
        for shard in shards:
            shard.load(from_torch(whole, told, layout))


def test_layer_wise_optimizers_refuse_an_even_cut():
    model = net()
    optimizer = MAKERS["timm.lars"](model)
    layout = Layout.of(list(model.named_parameters()))
    values = torch.zeros(layout.size // 2, dtype=layout.kind)
    with pytest.raises(UsageError, match=r"timm.lars works on whole tensors"):
        Updater(describe(optimizer, list(model.parameters())), layout, 0, values, values.clone())


class Mine(torch.optim.SGD):
    pass


def test_a_class_of_ones_own_must_be_registered():
    parameters = [torch.zeros(2)]
    with pytest.raises(UsageError, match="no optimizer called 'mine'"):
        describe(Mine(parameters), parameters)
    register(Mine, elementwise=True)
    assert describe(Mine(parameters, lr=0.5), parameters)["groups"][0]["lr"] == 0.5


def test_what_is_no_number_is_refused():
    parameters = [torch.zeros(2)]
    with pytest.raises(UsageError, match="option lr is Tensor"):
        describe(torch.optim.SGD(parameters, lr=torch.tensor(0.1)), parameters)


def test_what_torch_refuses_is_refused():
    """Pushes of a batch are stepped with both; a person has no use for them together."""
    with pytest.raises(UsageError, match="sgd: nesterov needs a dampening of 0"):
        named("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "dampening": 0.5})
    values, gradient = torch.zeros(1), torch.ones(1)
    layout = Layout.of([("a", values)])
    updater = Updater(named("sgd", {"lr": 1.0, "momentum": 0.5, "dampening": 0.5}), layout, 0, values, gradient)
    for _ in range(2):
        updater.step()
    assert values.item() == -2.0  # torch takes the first gradient whole: 1, then 0.5 x 1 + 0.5 x 1


def test_hooks_of_torch_are_left_out_and_those_of_others_are_not():
    calls = []

    class Counting(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            calls.append(torch.is_grad_enabled())
            return super().step(closure)

    register(Counting, elementwise=True)
    values, gradient = torch.zeros(4), torch.ones(4)
    layout = Layout.of([("a", values)])
    for name, expected in (("counting", [False]), ("sgd", [])):
        calls.clear()
        values.zero_()
        told = {"name": name, "groups": [{"params": [0], "lr": 0.5}]}
        Updater(told, layout, 0, values, gradient).step(0.25)
        assert calls == expected
        assert values.tolist() == [-0.25] * 4
