"""KVStore in one process: MXNet's meaning of its verbs."""

from __future__ import annotations

import pytest
import torch

from shoal.base.errors import UsageError
from shoal.kvstore import TYPES, create

ONE = torch.ones(2, 3)


@pytest.fixture(params=["local", "device"])
def kv(request):
    return create(request.param)


def test_an_unknown_type_lists_those_there_are():
    with pytest.raises(UsageError) as caught:
        create("dist_snyc")
    assert "did you mean 'dist_sync'" in str(caught.value)
    assert all(name in str(caught.value) for name in TYPES)


def test_a_type_is_read_in_any_case():
    assert create("LOCAL").type == "local"


def test_init_then_pull(kv):
    kv.init(3, ONE * 5)
    out = torch.zeros(2, 3)
    kv.pull(3, out=out)
    assert torch.equal(out, ONE * 5)
    assert (kv.rank, kv.num_workers, kv.num_dead_node()) == (0, 1, 0)


def test_a_push_replaces_by_the_sum_over_devices(kv):
    kv.init("a", ONE)
    kv.push("a", [ONE, ONE * 10, ONE * 100])
    assert torch.equal(kv.pull("a"), ONE * 111)
    kv.push("a", ONE * 2)
    assert torch.equal(kv.pull("a"), ONE * 2)


def test_pushed_values_stay_as_they_were(kv):
    kv.init("a", ONE)
    pushed = [ONE.clone(), ONE.clone()]
    kv.push("a", pushed)
    assert all(torch.equal(value, ONE) for value in pushed)


def test_lists_of_keys(kv):
    kv.init([1, 2], [ONE, ONE * 2])
    kv.push([1, 2], [[ONE, ONE], [ONE * 3, ONE]])
    outs = [[torch.zeros(2, 3), torch.zeros(2, 3)] for _ in range(2)]
    kv.pull([1, 2], out=outs)
    assert [[tensor[0, 0].item() for tensor in out] for out in outs] == [[2, 2], [4, 4]]


def test_pushpull_without_out_overwrites_the_value(kv):
    kv.init("a", ONE)
    values = [ONE.clone(), ONE.clone() * 2]
    kv.pushpull("a", values)
    assert all(torch.equal(value, ONE * 3) for value in values)
    out = torch.zeros(2, 3)
    kv.pushpull("a", ONE, out=out)
    assert torch.equal(out, ONE)


def test_broadcast_is_init_and_pull(kv):
    out = torch.zeros(2, 3)
    kv.broadcast("a", ONE * 4, out)
    assert torch.equal(out, ONE * 4)
    with pytest.raises(UsageError, match="'a' has been initialised before"):
        kv.broadcast("a", ONE, out)


def test_faults_are_told(kv):
    kv.init("weight", ONE)
    with pytest.raises(UsageError, match="all int or all str"):
        kv.init(1, ONE)
    with pytest.raises(UsageError, match="key 'wieght' was not initialised; did you mean 'weight'"):
        kv.push("wieght", ONE)
    with pytest.raises(UsageError, match=r"shape \[3\], but it is \[2, 3\]"):
        kv.push("weight", torch.ones(3))
    with pytest.raises(UsageError, match="2 keys, but 1 values"):
        kv.push(["weight", "weight"], [ONE])
    with pytest.raises(UsageError, match="on their way to servers"):
        kv.set_gradient_compression({"type": "2bit"})
    with pytest.raises(UsageError, match="keys are int or str"):
        kv.init(1.5, ONE)


def test_an_updater_changes_what_is_stored(kv):
    kv.init("a", ONE)
    kv.set_updater(lambda key, pushed, stored: stored.add_(pushed, alpha=2))
    kv.push("a", [ONE, ONE])
    assert torch.equal(kv.pull("a"), ONE * 5)


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, torch.optim.SGD),
        ("AdamW", {"lr": 0.1, "betas": (0.8, 0.9)}, torch.optim.AdamW),
        ("adagrad", {"lr": 0.1}, torch.optim.Adagrad),
    ],
)
def test_an_optimizer_steps_as_torchs_own(kv, name, options, kind, tmp_path):
    start, gradients = torch.randn(2, 3), torch.randn(6, 2, 2, 3)
    expected = torch.nn.Parameter(start.clone())
    optimizer = kind([expected], fused=True, **options)
    kv.init("a", start)
    kv.set_optimizer(name, rescale_grad=0.5, **options)
    for number, (one, two) in enumerate(gradients):
        kv.push("a", [one, two])
        expected.grad = (one + two) * 0.5
        optimizer.step()
        assert torch.equal(kv.pull("a"), expected)
        if number == 2:
            kv.save_optimizer_states(tmp_path / "states")
            kv.set_optimizer(name, rescale_grad=0.5, **options)
            kv.load_optimizer_states(tmp_path / "states")


def test_the_rate_can_change_and_momentum_stays(kv):
    kv.init("a", torch.zeros(1))
    kv.set_optimizer("sgd", lr=1.0, momentum=0.5)
    kv.push("a", torch.ones(1))
    kv.set_learning_rate(0.1)
    kv.push("a", torch.ones(1))
    assert kv.pull("a").item() == pytest.approx(-1 - 0.1 * 1.5)


def test_optimizers_are_names_with_options(kv):
    with pytest.raises(UsageError, match="no optimizer called 'sdg'; did you mean 'sgd'"):
        kv.set_optimizer("sdg")
    with pytest.raises(UsageError, match="sgd has no option 'lrr'; did you mean 'lr'"):
        kv.set_optimizer("sgd", lrr=1)
    with pytest.raises(UsageError, match="option lr is Tensor"):
        kv.set_optimizer("sgd", lr=torch.ones(1))
