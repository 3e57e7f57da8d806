"""Weights of MXNet, torchvision and timm: they load, and the model then computes what it computed before."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from old_weights import OldNet, as_mxnet, example_names, made, written
from safetensors.torch import load_file
from torch.nn import functional as F

from shoal.base.errors import ShoalError, UsageError
from shoal.importing import mxnet_nets
from shoal.importing.mxnet_nets import recognise
from shoal.importing.weights import convert
from shoal.models.mxnet_resnet import UNITS


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("cifar-preresnet8", example_names(1)),
        ("cifar-preresnet29-bottleneck", example_names(3, deep=True)),
    ],
)
def test_a_net_of_mxnet_gives_its_outputs(tmp_path: Path, name: str, names: list[str]):
    arrays = as_mxnet(name, names)
    assert set(arrays) == set(names)
    arrays["bn_data_gamma"] = np.full(3, 9, np.float32)  # fix_gamma: MXNet computes with 1 whatever is held
    (tmp_path / "old.params").write_bytes(written({f"arg:{key}": array for key, array in arrays.items()}))
    told = convert(tmp_path / "old.params", tmp_path / "new.safetensors", None)
    assert f"model={name} " in told[-1]
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours = made(name, pretrained=str(tmp_path / "new.safetensors"))(images)
        assert torch.equal(ours, made(name)(images))


def test_a_net_of_gluon_has_its_arrays_under_timms_names(tmp_path: Path):
    names = OldNet((2, 2, 2, 2), 1, gluon=True).names()
    arrays = as_mxnet("resnet18", names)
    assert set(arrays) == set(names)
    (tmp_path / "old.params").write_bytes(written(arrays))
    convert(tmp_path / "old.params", tmp_path / "new.safetensors", None)
    found, mapping = load_file(tmp_path / "new.safetensors"), recognise(names).names
    assert all(np.array_equal(found[mapping[name]].numpy(), array) for name, array in arrays.items())


SHORT = (2, 1, 1, 1)


@pytest.mark.parametrize(
    ("model", "old"),
    [
        ("mxnet-resnet18-v1", OldNet(SHORT, 1)),
        ("mxnet-resnet50-v2", OldNet(SHORT, 2, deep=True)),
        ("gluon-resnet50-v1", OldNet(SHORT, 1, deep=True, gluon=True)),
        ("gluon-resnet18-v2", OldNet(SHORT, 2, gluon=True)),
    ],
)
def test_a_net_for_large_images_computes_what_mxnets_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, old: OldNet
):
    """In float64, against the net written out from MXNet's own names of its arrays; with few units, to be quick."""
    for depth, known in ((18, mxnet_nets._BASIC), (50, mxnet_nets._BOTTLENECK)):
        monkeypatch.setitem(UNITS, depth, SHORT)
        monkeypatch.setitem(known, SHORT, depth)
    arrays = as_mxnet(model, old.names())
    assert set(arrays) == set(old.names())
    if old.version == 2:  # fix_gamma
        arrays[old.of(old.outer("bn_data"), "gamma")] = np.full(3, 9, np.float32)
    (tmp_path / "old.params").write_bytes(written(arrays))
    told = convert(tmp_path / "old.params", tmp_path / "new.safetensors", None)
    assert f"model={model} " in told[-1]
    assert any("data.mean=[123.68,116.779,103.939]" in line for line in told) is not old.gluon
    images = torch.randn(2, 3, 56, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        ours = made(model, pretrained=str(tmp_path / "new.safetensors")).double()(images)
        torch.testing.assert_close(ours, _written_out(old, arrays, images), rtol=1e-12, atol=1e-12)


def _written_out(old: OldNet, arrays: dict[str, np.ndarray], x: torch.Tensor) -> torch.Tensor:
    def held(module: str, last: str) -> torch.Tensor:
        return torch.from_numpy(arrays[old.of(module, last)]).double()

    def norm(x: torch.Tensor, module: str, *, fix_gamma: bool = False) -> torch.Tensor:
        gamma, beta, mean, var = (held(module, last) for last in ("gamma", "beta", "moving_mean", "moving_var"))
        gamma = torch.ones_like(mean) if fix_gamma else gamma
        return F.batch_norm(x, mean, var, gamma, beta, eps=1e-5 if old.gluon else 2e-5)

    def conv(x: torch.Tensor, module: str, stride: int) -> torch.Tensor:
        weight = held(module, "weight")
        bias = held(module, "bias") if old.of(module, "bias") in arrays else None
        return F.conv2d(x, weight, bias, stride, padding=weight.shape[-1] // 2)

    x = norm(x, old.outer("bn_data"), fix_gamma=True) if old.version == 2 else x
    x = F.max_pool2d(norm(conv(x, old.outer("conv0"), 2), old.outer("bn0")).relu(), 3, 2, 1)
    for stage, count in enumerate(old.units, 1):
        for unit in range(1, count + 1):
            at = partial(old.unit, stage, unit)
            stride = 2 if stage > 1 and unit == 1 else 1
            last = 3 if old.deep else 2
            strided = 2 if old.deep and old.version == 2 else 1
            y = norm(x, at("bn1")).relu() if old.version == 2 else x
            if old.projects(stage, unit):
                x = conv(y, at("sc"), stride)
                x = norm(x, at("sc_bn")) if old.version == 1 else x
            for number in range(1, last + 1):
                y = norm(y, at(f"bn{number}")).relu() if old.version == 2 and number > 1 else y
                y = conv(y, at(f"conv{number}"), stride if number == strided else 1)
                y = norm(y, at(f"bn{number}")) if old.version == 1 else y
                y = y.relu() if old.version == 1 and number < last else y
            x = (x + y).relu() if old.version == 1 else x + y
    x = norm(x, old.outer("bn1")).relu() if old.version == 2 else x
    return F.linear(x.mean((2, 3)), held(old.outer("fc1"), "weight"), held(old.outer("fc1"), "bias"))


def test_gluons_prefixes_count_parts_in_the_order_in_which_they_are_made():
    def spelled(stages: tuple[tuple[int, int], ...], prefix: str) -> list[str]:
        """stages: how many convolutions and norms each has."""
        found = [f"{prefix}dense0_bias", f"{prefix}conv0_weight"]
        for stage, (convs, norms) in enumerate(stages, 1):
            found += [f"{prefix}stage{stage}_conv{number}_weight" for number in range(convs)]
            found += [f"{prefix}stage{stage}_batchnorm{number}_gamma" for number in range(norms)]
        return found

    names = spelled(((10, 9), (13, 12), (70, 69), (10, 9)), "resnetv23_")
    net = recognise([*names, "resnetv23_batchnorm0_gamma", "resnetv23_batchnorm2_beta"])
    assert net.model == "gluon-resnet101-v2" and net.fixed == ("resnetv23_batchnorm0_gamma",)
    assert set(names) < set(net.names) and len(set(net.names.values())) == len(net.names)
    assert net.names["resnetv23_batchnorm2_beta"] == "features.38.bias"
    assert net.names["resnetv23_stage2_conv3_weight"] == "features.8.shortcut.weight"
    assert net.names["resnetv23_stage2_conv4_weight"] == "features.9.branch.0.weight"
    assert net.names["resnetv23_stage2_batchnorm3_gamma"] == "features.9.norm.weight"
    names = spelled(((10, 10), (25, 25), (109, 109), (10, 10)), "resnetv10_")
    net = recognise(names)
    assert net.model == "gluon-resnet152-v1" and set(names) == set(net.names) and net.fixed == ()
    assert net.names["resnetv10_stage1_conv3_weight"] == "features.4.shortcut.0.weight"
    assert net.names["resnetv10_stage1_batchnorm4_gamma"] == "features.5.branch.1.weight"


def test_gluons_prefixes_and_gluoncvs_names():
    by_prefix = [
        "resnetv10_conv0_weight",
        "resnetv10_dense0_weight",
        "resnetv10_dense0_bias",
        "resnetv10_batchnorm0_gamma",
    ]
    for stage, count in enumerate((4, 5, 5, 5), 1):
        by_prefix += [f"resnetv10_stage{stage}_conv{number}_weight" for number in range(count)]
        by_prefix += [f"resnetv10_stage{stage}_batchnorm{number}_running_var" for number in range(count)]
    net = recognise(by_prefix)
    assert net.model == "resnet18" and set(net.names) == set(by_prefix)
    assert net.names["resnetv10_stage2_conv2_weight"] == "layer2.0.downsample.0.weight"
    assert net.names["resnetv10_stage2_batchnorm3_running_var"] == "layer2.1.bn1.running_var"
    gluoncv = [
        f"layer{s}.{b}.conv{c}.weight" for s, n in enumerate((3, 4, 6, 3), 1) for b in range(n) for c in (1, 2, 3)
    ]
    net = recognise([*gluoncv, "bn1.gamma", "fc.weight"])
    assert (net.model, net.names["bn1.gamma"]) == ("resnet50", "bn1.weight")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([*OldNet((2, 2, 2)).names(), "bn0_gamma"], "no CIFAR ResNet: stages of 2, 2, 2 units"),
        (OldNet((2, 2, 2), 1).names(), "for images of at most 32 pixels"),
        ([name for name in OldNet((2, 2, 2, 2)).names() if "bn0" not in name], "for images of at most 32 pixels"),
        (OldNet((2, 2, 2, 3), 1).names(), "stages of 2, 2, 2, 3 units, of which none is known"),
        (OldNet((1, 1, 1, 1), 1, gluon=True).names(), "stages of 1, 1, 1, 1 units"),
        (["resnetv10_conv0_weight", "resnetv10_stage1_conv0_weight"], "Gluon ResNet with 1 convolutions in its stages"),
        (["fullyconnected0_weight"], "weights of no net that is known here (fullyconnected0_weight, … 1 arrays)"),
    ],
)
def test_other_nets_are_refused_with_the_reason(names: list[str], told: str):
    with pytest.raises(ShoalError) as error:
        recognise(names)
    assert told in str(error.value)


def test_arrays_that_do_not_fit_are_named(tmp_path: Path):
    arrays, file, out = (
        as_mxnet("cifar-preresnet8", example_names(1)),
        tmp_path / "old.params",
        tmp_path / "new.safetensors",
    )
    for change, told in (
        ({"fc1_bias": np.zeros(4, np.float32)}, r"head.bias \(weights \[4\], model \[5\]\)"),
        ({"more_weight": np.zeros(4, np.float32)}, "more_weight is no part of cifar-preresnet8"),
    ):
        file.write_bytes(written(arrays | change))
        with pytest.raises(ShoalError, match=told):
            convert(file, out, None)
    file.write_bytes(written({key: array for key, array in arrays.items() if key != "conv0_weight"}))
    with pytest.raises(ShoalError, match=r"features.1.weight \(weights none"):
        convert(file, out, None)
    with pytest.raises(ShoalError, match="holds weights of cifar-preresnet8, not of resnet18"):
        convert(file, out, "resnet18")
    assert not out.exists()


def test_torchs_files_come_out_of_their_nests(tmp_path: Path):
    state = {f"module.{key}": tensor for key, tensor in made("cifar-resnet8").state_dict().items()}
    torch.save({"epoch": 3, "arch": "x", "state_dict": state}, tmp_path / "checkpoint.pth.tar")
    convert(tmp_path / "checkpoint.pth.tar", tmp_path / "new.safetensors", "cifar-resnet8")
    assert set(load_file(tmp_path / "new.safetensors")) == {key.removeprefix("module.") for key in state}


def test_pickles_are_never_opened(tmp_path: Path):
    class Bomb:
        def __reduce__(self) -> tuple:
            return (Path(tmp_path / "went-off").touch, ())

    for name in ("a.pdparams", "a.pth", "a.params"):
        (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(ShoalError, match="pickle"):
            convert(tmp_path / name, tmp_path / "new.safetensors", "resnet18")
    torch.save(Bomb(), tmp_path / "b.pth")
    with pytest.raises(ShoalError, match="cannot read"):
        convert(tmp_path / "b.pth", tmp_path / "new.safetensors", "resnet18")
    assert not (tmp_path / "went-off").exists() and not (tmp_path / "new.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "model", "told"),
    [("a.bin", None, "expected .params of MXNet"), ("none.pth", "resnet18", "none.pth: no such file")],
)
def test_other_files_of_weights_are_refused(tmp_path: Path, name: str, model: str | None, told: str):
    (tmp_path / "a.bin").touch()
    with pytest.raises(UsageError, match=told):
        convert(tmp_path / name, tmp_path / "new.safetensors", model)
