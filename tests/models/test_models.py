"""Models: sizes, seeds, names, and weights from files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shoal.base.errors import ShoalError, UsageError
from shoal.models import Model, check_name, create, names


@pytest.fixture(autouse=True)
def one_thread():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(name, *, classes=10, channels=3, seed=0, **fields):
    return create(Model(name=name, **fields), classes=classes, channels=channels, seed=seed)


def count(module):
    return sum(one.numel() for one in module.parameters())


@pytest.mark.parametrize(
    ("name", "channels", "side", "parameters"),
    [
        ("digits-cnn", 1, 8, 33_338),
        ("cifar-resnet20", 3, 32, 269_722),  # the paper: 0.27 M
        ("cifar-resnet110", 3, 32, 1_727_962),  # the paper: 1.7 M
        ("cifar-resnet164-bottleneck", 3, 32, 1_704_154),  # the paper: 1.7 M
        ("cifar-preresnet8", 3, 28, 78_112),  # MXNet's symbol, the fixed scale of the input counted
        ("cifar-preresnet29-bottleneck", 1, 28, 311_932),
        ("cifar-whitenet24", 3, 32, 163_450),
        ("cifar-whitenet8", 1, 16, 18_522),
        ("mxnet-resnet18-v1", 1, 32, 11_179_594),  # torchvision's, and a projection in the first stage
        ("gluon-resnet18-v2", 3, 40, 11_179_984),
        ("test_vit", 3, 160, 306_890),
        ("alexnet", 1, 63, 57_029_322),
        ("googlenet", 3, 32, 5_610_154),
    ],
)
def test_parameters_and_logits(name, channels, side, parameters):
    import torch

    module, notes = make(name, channels=channels)
    assert count(module) == parameters and notes == []
    assert module.eval()(torch.randn(2, channels, side, side)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("hgnet_base", 71.62),
        ("lcnetv2_base", 6.54),
        ("lcnet_025", 1.52),
        ("resnet50d", 25.58),
    ],  # PP-HGNet, PP-LCNetV2 …
)
def test_the_models_of_paddles_table(name, millions):
    """As many parameters as PaddleClas publishes, within 2.5 %: timm's PP-LCNetV2 has biases that Paddle's lacks."""
    import torch

    with torch.device("meta"):
        module = make(name, classes=1000).module
    assert count(module) == pytest.approx(1e6 * millions, rel=0.025)


def test_lcnet_computes_timms_lcnet():
    """The same weights, in order, at a width that timm has."""
    import timm
    import torch

    from shoal.models.lcnet import LcNet

    torch.manual_seed(0)
    ours = LcNet(classes=10, width=0.5).double().eval()
    theirs = timm.create_model("lcnet_050", num_classes=10).double().eval()
    for module in ours.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.2, 0.2)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    images = torch.randn(2, 3, 40, 48, dtype=torch.float64)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-12, atol=1e-12)
    assert count(make("lcnet_025", classes=1000).module) == 1_522_464


def test_preresnet8_is_mxnets_symbol():
    from torch import nn

    module = make("cifar-preresnet8").module
    convs = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    shapes = [(layer.in_channels, layer.out_channels, layer.kernel_size[0], layer.stride[0]) for layer in convs]
    assert shapes == [
        (3, 16, 3, 1),
        *[(16, 16, 3, 1), (16, 16, 3, 1), (16, 16, 1, 1)],  # a projection in the first stage too
        *[(16, 32, 3, 2), (32, 32, 3, 1), (16, 32, 1, 2)],
        *[(32, 64, 3, 2), (64, 64, 3, 1), (32, 64, 1, 2)],
    ]
    assert all(layer.bias is None for layer in convs)
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert [layer.num_features for layer in norms] == [3, 16, 16, 16, 32, 32, 64, 64]
    assert {(layer.eps, layer.momentum) for layer in norms} == {(2e-5, 0.1)}
    assert [layer.weight.requires_grad for layer in norms] == [False] + [True] * 7
    assert all(layer.bias.requires_grad for layer in norms)


def test_preresnet8_computes_mxnets_symbol():
    """The same weights, in order, put through the net written out by hand."""
    import torch
    from torch.nn import functional as F

    module = make("cifar-preresnet8").module.double()
    weights = module.parameters()

    def norm(x):
        return F.batch_norm(x, None, None, next(weights), next(weights), training=True, eps=2e-5)

    images = torch.randn(4, 3, 28, 28, dtype=torch.float64)
    x = F.conv2d(norm(images), next(weights), padding=1)
    for stride in (1, 2, 2):
        act1 = norm(x).relu()
        conv1 = F.conv2d(act1, next(weights), stride=stride, padding=1)
        conv2 = F.conv2d(norm(conv1).relu(), next(weights), padding=1)
        x = conv2 + F.conv2d(act1, next(weights), stride=stride)
    logits = F.linear(norm(x).relu().mean((2, 3)), next(weights), next(weights))
    assert next(weights, None) is None
    torch.testing.assert_close(module.train()(images), logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["digits-cnn", "cifar-whitenet24", "cifar-preresnet8", "cifar-resnet8", "test_resnet"])
def test_weights_are_a_function_of_the_seed(name):
    import torch

    first, second, other = (make(name, seed=seed).module.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_drop_and_drop_path():
    import torch

    images = torch.randn(64, 3, 8, 8)
    for fields in ({"drop": 0.5}, {"drop_path": 0.5}):
        module = make("cifar-resnet8", **fields).module
        assert not torch.equal(module.train()(images), module(images))
        assert torch.equal(module.eval()(images), module(images))
    rates = [
        one.drop_prob for one in make("cifar-resnet14", drop_path=0.6).module.modules() if hasattr(one, "drop_prob")
    ]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])


def test_drop_path_keeps_the_mean():
    import torch

    from shoal.models.residual import DropPath

    torch.manual_seed(0)
    out = DropPath(0.25)(torch.ones(10_000, 1, 1, 1))
    assert out.unique().tolist() == pytest.approx([0, 4 / 3])
    assert out.mean().item() == pytest.approx(1, abs=0.02)


def test_the_whitening_stem_has_patches_of_unit_variance_and_their_negatives():
    import torch

    stream = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 3, 35, 35, generator=stream)
    images = torch.nn.functional.avg_pool2d(noise, 4, 1)  # neighbours alike, as in photographs
    net = make("cifar-whitenet8").module
    net.start_from(images)
    out = net.stem(images)[:, :, 1:-1, 1:-1]  # the padding's edge is no patch of the images
    assert torch.equal(out[:, :4], -out[:, 4:])
    flat = out[:, :4].transpose(0, 1).flatten(1)
    torch.testing.assert_close(flat @ flat.T / flat.shape[1], torch.eye(4), atol=0.05, rtol=0)
    assert not net.stem.weight.requires_grad


def test_a_stem_wider_than_patches_have_directions_is_told():
    with pytest.raises(UsageError, match="width 34: patches of 1 x 4 x 4 have 16 directions"):
        make("cifar-whitenet34", channels=1)
    assert (
        check_name("cifar-whitenet7")
        == "no model called 'cifar-whitenet7': its width has to be even (cifar-whitenet24)"
    )


def test_names_are_checked_without_torch_and_timm():
    code = """
import sys, time
import shoal.models as models
started = time.perf_counter()
known = ["digits-cnn", "alexnet", "googlenet", "resnet50", "resnet50.a1_in1k", "swsl_resnext101_32x16d"]
assert [models.check_name(name) for name in known] == [None] * len(known)
print(models.check_name("resnet51"))
assert time.perf_counter() - started < 2  # 0.07 s on a quiet machine
assert models.Model(name="resnet51").faults()[0][0] == "name"
assert not {"torch", "timm", "torchvision"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no model called 'resnet51'; did you mean" in done.stdout and "'resnet50'" in done.stdout


def test_every_name_timm_takes_is_found():
    from timm.models import get_deprecated_models, list_models

    from shoal.models import _timm_names

    renamed = {old for old, new in get_deprecated_models().items() if new}
    assert _timm_names() == {*list_models(), *renamed}


def test_without_timm_the_name_check_says_so(monkeypatch):
    monkeypatch.setattr("shoal.models._timm_names", lambda: None)
    assert "timm is not installed" in (check_name("resnet50") or "")
    assert check_name("cifar-resnet20") is None


@pytest.mark.parametrize(
    ("name", "nearby"),
    [
        ("cifar-resnet21", "6n+2; nearby: cifar-resnet20, cifar-resnet26"),
        ("cifar-preresnet2", "6n+2; nearby: cifar-preresnet8, cifar-preresnet14"),
        ("cifar-preresnet30-bottleneck", "9n+2; nearby: cifar-preresnet29-bottleneck, cifar-preresnet38-bottleneck"),
    ],
)
def test_a_depth_that_does_not_fit(name, nearby):
    assert nearby in (check_name(name) or "")
    with pytest.raises(UsageError, match="nearby"):
        make(name)


def test_listed_names_are_known():
    assert all(check_name(name) is None for name in names())
    assert names("alex*") == ["alexnet"]
    assert "cifar-preresnet8" in names("*pre*") and "cifar-resnet8" not in names("*pre*")


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"name": "digits-cnn", "pretrained": True}, "pretrained"),
        ({"name": "digits-cnn", "drop_path": 0.1}, "drop_path"),
        ({"name": "cifar-resnet8", "options": {"width": 3}}, "options"),
        ({"name": "resnet18", "options": {"num_classes": 3}}, "options"),
        ({"name": "resnet18", "pretrained": "weights.onnx"}, "pretrained"),
    ],
)
def test_faults(fields, key):
    assert [found for found, _ in Model(**fields).faults()] == [key]


def test_options_timm_does_not_take_are_named():
    with pytest.raises(UsageError, match=r"test_vit does not take model\.options\.foo, model\.options\.bar"):
        make("test_vit", options={"foo": 1, "bar": 2})
    with pytest.raises(UsageError, match=r"vgg11 does not take model\.drop_path"):
        make("vgg11", drop_path=0.1)


def test_options_reach_timm():
    assert count(make("test_vit", options={"depth": 1}).module) < count(make("test_vit").module)


def test_timms_weights_that_cannot_be_had(monkeypatch):
    import timm

    def offline(*_, **__):
        raise OSError("no route to host\nand forty lines more")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(ShoalError, match=r"test_vit: cannot get timm's weights: no route to host$"):
        make("test_vit", pretrained=True)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
@pytest.mark.parametrize("name", ["cifar-resnet8", "test_resnet"])
def test_weights_from_a_file(tmp_path, name, suffix):
    import torch
    from safetensors.torch import save_file

    weights, path = make(name, seed=1).module.state_dict(), tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file(weights, path)
    elif suffix == ".pt":
        torch.save({"state_dict": {f"module.{key}": value for key, value in weights.items()}, "epoch": 3}, path)
    else:
        torch.save({"model": {f"_orig_mod.module.{key}": value for key, value in weights.items()}}, path)
    module, notes = make(name, seed=2, pretrained=str(path))
    assert notes == []
    assert all(torch.equal(value, weights[key]) for key, value in module.state_dict().items())

    smaller, notes = make(name, seed=2, classes=7, pretrained=str(path))
    assert len(notes) == 1 and notes[0].startswith("classifier head re-made")
    fresh = make(name, seed=2, classes=7).module.state_dict()
    head = "fc." if name == "test_resnet" else "head."
    for key, value in smaller.state_dict().items():
        assert torch.equal(value, (fresh if key.startswith(head) else weights)[key]), key


def test_weights_that_do_not_fit_are_named(tmp_path):
    import torch

    path = tmp_path / "wide.pt"
    torch.save(make("digits-cnn", channels=3).module.state_dict(), path)
    with pytest.raises(ShoalError, match=r"features\.0\.weight \(weights \[16, 3, 3, 3\], model \[16, 1, 3, 3\]\)$"):
        make("digits-cnn", channels=1, pretrained=str(path))
    with pytest.raises(ShoalError, match=r"\(weights none, model \[16, 16, 3, 3\]\), .*, … \d+ in all$"):
        make("cifar-resnet8", pretrained=str(path))


def test_files_that_hold_no_weights(tmp_path):
    import torch

    with pytest.raises(UsageError, match=r"no file .*missing\.pt"):
        make("digits-cnn", pretrained=str(tmp_path / "missing.pt"))
    (tmp_path / "noise.pt").write_bytes(b"noise")
    with pytest.raises(ShoalError, match=r"cannot read .*noise\.pt"):
        make("digits-cnn", pretrained=str(tmp_path / "noise.pt"))
    torch.save({"epoch": 3}, tmp_path / "epoch.pt")
    with pytest.raises(ShoalError, match="holds no state dict"):
        make("digits-cnn", pretrained=str(tmp_path / "epoch.pt"))
