"""Weights of MXNet, torchvision and timm: they load, and the model then computes what it computed before."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from old_weights import as_mxnet, example_names, gluon_names, made, written
from safetensors.torch import load_file

from shoal.base.errors import ShoalError, UsageError
from shoal.importing.mxnet_nets import recognise
from shoal.importing.weights import convert


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
    names = gluon_names((2, 2, 2, 2))
    arrays = as_mxnet("resnet18", names)
    assert set(arrays) == set(names)
    (tmp_path / "old.params").write_bytes(written(arrays))
    convert(tmp_path / "old.params", tmp_path / "new.safetensors", None)
    found, mapping = load_file(tmp_path / "new.safetensors"), recognise(names).names
    assert all(np.array_equal(found[mapping[name]].numpy(), array) for name, array in arrays.items())


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
        ([*example_names(1), "bn0_gamma"], "normalises behind its first convolution"),
        (["bn0_gamma", "conv0_weight"], "resnet-v1: its units stride in their first convolution"),
        ([*gluon_names((3, 4, 6, 3)), "features.4.0.body.6.weight"], "resnet50_v1 or deeper"),
        (gluon_names((1, 1, 1, 1)), "no resnet18_v1 nor resnet34_v1"),
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
