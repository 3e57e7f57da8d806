"""MXNet's ResNets: whose weights a list of names is, and what each is called here.

Only nets that compute the same here: its example's ResNets for small images (cifar-preresnet…), Gluon's resnet18_v1 and
resnet34_v1, and GluonCV's resnet…_v1b. The others differ in where they stride or normalise, and are refused with that.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from shoal.base.errors import ShoalError


class Net(NamedTuple):
    """The model here, and MXNet's name -> ours for each of its arrays. `fixed`: scales that were never applied."""

    model: str
    names: dict[str, str]
    fixed: tuple[str, ...] = ()


_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_var": "running_var",
         "running_mean": "running_mean", "running_var": "running_var"}  # fmt: skip
_BASIC: dict[tuple[int, ...], int] = {(2, 2, 2, 2): 18, (3, 4, 6, 3): 34}
_BOTTLENECK: dict[tuple[int, ...], int] = {(3, 4, 6, 3): 50, (3, 4, 23, 3): 101, (3, 8, 36, 3): 152}


def recognise(names: Collection[str]) -> Net:
    """The net that these arrays are of. ShoalError: none that is known, with the reason."""
    if "bn_data_gamma" in names:
        return _example(names)
    if "bn0_gamma" in names and "conv0_weight" in names:
        raise ShoalError(
            "weights of the example's resnet-v1: its units stride in their first convolution, those here in the 3x3"
        )
    if "layer1.0.conv1.weight" in names and "bn1.gamma" in names:
        return _gluoncv(names)
    if any(name.startswith("features.") for name in names) or any("_batchnorm0_gamma" in name for name in names):
        return _gluon(names)
    some = ", ".join(sorted(names)[:3])
    raise ShoalError(f"weights of no net that is known here ({some}, … {len(names)} arrays); known: MXNet's ResNets")


def _example(names: Collection[str]) -> Net:
    """symbols/resnet.py (pre-activation), for images of at most 28 pixels."""
    if "bn0_gamma" in names:
        raise ShoalError(
            "weights of the example's resnet for large images: it normalises behind its first convolution, which "
            "no model here does (timm's resnetv2 does not)"
        )
    found = [re.fullmatch(r"stage(\d+)_unit(\d+)_conv1_weight", name) for name in names]
    units = [(int(match[1]), int(match[2])) for match in found if match]
    per_stage = max((unit for _, unit in units), default=0)
    deep = any(name.endswith("_conv3_weight") for name in names)
    if len(units) != 3 * per_stage:
        raise ShoalError(f"weights of no CIFAR ResNet: {len(units)} units, not three stages of {per_stage}")
    renamed = {**_norm("bn_data", "features.0"), "conv0_weight": "features.1.weight"}
    for place, (stage, unit) in enumerate(sorted(units), 2):
        old, new = f"stage{stage}_unit{unit}", f"features.{place}"
        renamed |= _norm(f"{old}_bn1", f"{new}.norm") | {f"{old}_sc_weight": f"{new}.shortcut.weight"}
        renamed |= {f"{old}_conv1_weight": f"{new}.branch.0.weight", f"{old}_conv2_weight": f"{new}.branch.3.weight"}
        renamed |= _norm(f"{old}_bn2", f"{new}.branch.1")
        if deep:
            renamed |= _norm(f"{old}_bn3", f"{new}.branch.4") | {f"{old}_conv3_weight": f"{new}.branch.6.weight"}
    renamed |= _norm("bn1", f"features.{len(units) + 2}") | {"fc1_weight": "head.weight", "fc1_bias": "head.bias"}
    depth = per_stage * (9 if deep else 6) + 2
    return Net(f"cifar-preresnet{depth}{'-bottleneck' if deep else ''}", renamed, ("bn_data_gamma",))


def _gluoncv(names: Collection[str]) -> Net:
    """resnet18_v1b … resnet152_v1b: torchvision's structure, with Gluon's words for normalisation."""
    renamed = {}
    for name in names:
        module, _, last = name.rpartition(".")
        renamed[name] = f"{module}.{_NORM.get(last, last)}"
    found = [re.fullmatch(r"layer([1-4])\.(\d+)\.conv1\.weight", name) for name in names]
    blocks = tuple(sum(1 for match in found if match and match[1] == str(stage)) for stage in range(1, 5))
    depths = _BOTTLENECK if "layer1.0.conv3.weight" in names else _BASIC
    if blocks not in depths:
        raise ShoalError(f"weights of a ResNet with {blocks} blocks, of which none is known")
    return Net(f"resnet{depths[blocks]}", renamed)


def _gluon(names: Collection[str]) -> Net:
    """gluon.model_zoo's resnet18_v1 and resnet34_v1, saved by block (`features.4.0.body.0.weight`) or by prefix."""
    plain = [name for name in names if name.startswith("features.")]
    if not plain:
        return _gluon_prefixed(names)
    if "features.4.0.body.6.weight" in names:
        raise ShoalError(
            "weights of Gluon's resnet50_v1 or deeper: its units stride in their first convolution, not in the 3x3"
        )
    found = [re.fullmatch(r"features\.([4-7])\.(\d+)\.body\.0\.weight", name) for name in plain]
    blocks = tuple(sum(1 for match in found if match and match[1] == str(stage)) for stage in range(4, 8))
    if blocks not in _BASIC or "features.0.weight" not in names:
        raise ShoalError("weights of a Gluon net that is no resnet18_v1 nor resnet34_v1")
    renamed = {"features.0.weight": "conv1.weight", "output.weight": "fc.weight", "output.bias": "fc.bias"}
    renamed |= _dotted("features.1", "bn1")
    for stage, count in enumerate(blocks):
        for block in range(count):
            old, new = f"features.{stage + 4}.{block}", f"layer{stage + 1}.{block}"
            for place, part in ((0, "conv1"), (3, "conv2")):
                renamed[f"{old}.body.{place}.weight"] = f"{new}.{part}.weight"
            renamed |= _dotted(f"{old}.body.1", f"{new}.bn1") | _dotted(f"{old}.body.4", f"{new}.bn2")
            renamed[f"{old}.downsample.0.weight"] = f"{new}.downsample.0.weight"
            renamed |= _dotted(f"{old}.downsample.1", f"{new}.downsample.1")
    return Net(f"resnet{_BASIC[blocks]}", {old: new for old, new in renamed.items() if old in names})


def _gluon_prefixed(names: Collection[str]) -> Net:
    """`resnetv10_stage1_conv0_weight`: numbered through each stage, the shortcut's after those of its block."""
    first = next(name for name in names if name.endswith("_batchnorm0_gamma") and "_stage" not in name)
    prefix = first.removesuffix("batchnorm0_gamma")
    if not re.fullmatch(r"resnetv1\d*_", prefix):
        raise ShoalError(f"weights of a Gluon net {prefix.rstrip('_')}; known: resnet18_v1, resnet34_v1")
    counts = tuple(
        sum(f"{prefix}stage{stage}_conv" in name and name.endswith("weight") for name in names) for stage in range(1, 5)
    )
    blocks = tuple((count - (stage > 0)) // 2 for stage, count in enumerate(counts))
    if blocks not in _BASIC or any(name.endswith("_bias") and "_conv" in name for name in names):
        raise ShoalError("weights of a Gluon net that is no resnet18_v1 nor resnet34_v1")
    renamed = {f"{prefix}conv0_weight": "conv1.weight"} | _norm(f"{prefix}batchnorm0", "bn1")
    renamed |= {f"{prefix}dense0_{part}": f"fc.{part}" for part in ("weight", "bias")}
    for stage, count in enumerate(blocks):
        number = 0
        for block in range(count):
            parts = ["conv1", "conv2"] + (["downsample.0"] if block == 0 and stage > 0 else [])
            norms = ["bn1", "bn2"] + (["downsample.1"] if block == 0 and stage > 0 else [])
            for part, norm in zip(parts, norms, strict=True):
                old, new = f"{prefix}stage{stage + 1}", f"layer{stage + 1}.{block}"
                renamed[f"{old}_conv{number}_weight"] = f"{new}.{part}.weight"
                renamed |= _norm(f"{old}_batchnorm{number}", f"{new}.{norm}")
                number += 1
    return Net(f"resnet{_BASIC[blocks]}", {old: new for old, new in renamed.items() if old in names})


def _norm(old: str, new: str) -> dict[str, str]:
    return {f"{old}_{theirs}": f"{new}.{ours}" for theirs, ours in _NORM.items()}


def _dotted(old: str, new: str) -> dict[str, str]:
    return {f"{old}.{theirs}": f"{new}.{ours}" for theirs, ours in _NORM.items()}
