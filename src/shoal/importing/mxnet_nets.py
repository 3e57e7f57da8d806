"""MXNet's ResNets: whose weights a list of names is, and what each is called here.

Its example's (symbols/resnet.py, resnet-v1.py), those of Gluon's model_zoo, saved by block
(`features.4.0.body.0.weight`) or by prefix (`resnetv10_stage1_conv0_weight`), and GluonCV's resnet…_v1b. Modules go by
the example's names in between.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from shoal.base.errors import ShoalError


class Net(NamedTuple):
    """The model here, and MXNet's name -> ours for each of its arrays."""

    model: str
    names: dict[str, str]
    fixed: tuple[str, ...] = ()
    """Scales that were never applied."""
    raw: bool = False
    """Whether it was fed pixels less the means of ImageNet, not scaled."""


_LAST = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_var": "running_var",
         "running_mean": "running_mean", "running_var": "running_var", "weight": "weight", "bias": "bias"}  # fmt: skip
_BASIC: dict[tuple[int, ...], int] = {(2, 2, 2, 2): 18, (3, 4, 6, 3): 34}
_BOTTLENECK: dict[tuple[int, ...], int] = {
    (3, 4, 6, 3): 50,
    (3, 4, 23, 3): 101,
    (3, 8, 36, 3): 152,
    (3, 24, 36, 3): 200,
    (3, 30, 48, 8): 269,
}
_GLUON = {
    1: {"conv1": "body.0", "bn1": "body.1", "conv2": "body.3", "bn2": "body.4", "conv3": "body.6", "bn3": "body.7",
        "conv1sc": "downsample.0", "sc": "downsample.1"},
    2: {"bn1": "bn1", "conv1": "conv1", "bn2": "bn2", "conv2": "conv2", "bn3": "bn3", "conv3": "conv3",
        "sc": "downsample"},
}  # fmt: skip
"""A unit's parts in Gluon, by version, in the order in which they are made."""
_OURS = {
    1: {"conv1": "branch.0", "bn1": "branch.1", "conv2": "branch.3", "bn2": "branch.4", "conv3": "branch.6",
        "bn3": "branch.7", "conv1sc": "shortcut.0", "sc": "shortcut.1"},
    2: {"bn1": "norm", "conv1": "branch.0", "bn2": "branch.1", "conv2": "branch.3", "bn3": "branch.4",
        "conv3": "branch.6", "sc": "shortcut"},
}  # fmt: skip


def recognise(names: Collection[str]) -> Net:
    """The net that these arrays are of. ShoalError: none that is known, with the reason."""
    if {"conv0_weight", "stage1_unit1_conv1_weight"} & set(names):
        return _example(names)
    if "layer1.0.conv1.weight" in names and "bn1.gamma" in names:
        return _gluoncv(names)
    if any(name.startswith("features.") for name in names):
        return _blocks(names)
    if prefix := next((found[0] for name in names if (found := re.match(r"resnetv[12]\d*_", name))), None):
        return _prefixed(names, prefix)
    some = ", ".join(sorted(names)[:3])
    raise ShoalError(f"weights of no net that is known here ({some}, … {len(names)} arrays); known: MXNet's ResNets")


def _example(names: Collection[str]) -> Net:
    """symbols/resnet.py (pre-activation, for small images, too) and resnet-v1.py."""
    units = _counted(names, r"stage(\d+)_unit(\d+)_conv1_weight")
    deep, version = "stage1_unit1_conv3_weight" in names, 2 if "bn_data_gamma" in names else 1
    fixed = ("bn_data_gamma",) if version == 2 else ()
    if len(units) == 3 and version == 2:
        if len(set(units)) > 1 or "bn0_gamma" in names:
            raise ShoalError(f"weights of no CIFAR ResNet: stages of {_listed(units)} units")
        model = f"cifar-preresnet{units[0] * (9 if deep else 6) + 2}{'-bottleneck' if deep else ''}"
        return Net(model, _named(names, "_", _ours(units, version, stem=("conv0",))), fixed, raw=True)
    if len(units) == 3 or "bn0_gamma" not in names:
        raise ShoalError(
            "weights of the example's net for images of at most 32 pixels, which is here for `resnet` with three "
            "stages alone (cifar-preresnet…)"
        )
    model = f"mxnet-resnet{_depth(units, deep)}-v{version}"
    return Net(model, _named(names, "_", _ours(units, version)), fixed, raw=True)


def _gluoncv(names: Collection[str]) -> Net:
    """resnet18_v1b … resnet152_v1b: torchvision's structure, with Gluon's words for normalisation."""
    renamed = {}
    for name in names:
        module, _, last = name.rpartition(".")
        renamed[name] = f"{module}.{_LAST.get(last, last)}"
    units = _counted(names, r"layer([1-4])\.(\d+)\.conv1\.weight")
    return Net(f"resnet{_depth(units, 'layer1.0.conv3.weight' in names)}", renamed)


def _blocks(names: Collection[str]) -> Net:
    """Gluon's, saved with save_parameters."""
    version = 2 if "features.0.gamma" in names else 1
    units = _counted(names, rf"features\.(\d)\.(\d+)\.{_GLUON[version]['conv1']}\.weight")
    outer = {"features.0": "conv0", "features.1": "bn0"}
    if version == 2:
        outer = {"features.0": "bn_data", "features.1": "conv0", "features.2": "bn0", "features.9": "bn1"}
    theirs = {**outer, "output": "fc1"}
    for stage, count in enumerate(units, 1):
        for unit in range(1, count + 1):
            at = f"features.{stage + version + 2}.{unit - 1}"
            theirs |= {f"{at}.{old}": f"stage{stage}_unit{unit}_{part}" for part, old in _GLUON[version].items()}
    deep = f"features.{version + 3}.0.{_GLUON[version]['conv3']}.weight" in names
    return _gluon(names, ".", theirs, units, version, deep)


def _prefixed(names: Collection[str], prefix: str) -> Net:
    """Gluon's, saved by collect_params: parts are numbered through each stage, in the order in which they are made."""
    version = int(prefix[len("resnetv")])
    convs = _counted(names, rf"{prefix}stage(\d+)_(conv\d+)_weight")
    known = ((units, deep) for deep, nets in ((False, _BASIC), (True, _BOTTLENECK)) for units in nets)
    for units, deep in known:
        per_unit = 3 if deep else 2
        if convs == [per_unit * count + (deep or stage > 0) for stage, count in enumerate(units)]:
            break
    else:
        raise ShoalError(f"weights of a Gluon ResNet with {_listed(convs)} convolutions in its stages: none is known")
    outer = {"conv0": "conv0", "batchnorm0": "bn0"}
    if version == 2:
        outer = {"batchnorm0": "bn_data", "conv0": "conv0", "batchnorm1": "bn0", "batchnorm2": "bn1"}
    theirs = {f"{prefix}{old}": part for old, part in {**outer, "dense0": "fc1"}.items()}
    for stage, count in enumerate(units, 1):
        made = {"conv": 0, "batchnorm": 0}
        for unit in range(1, count + 1):
            for part, old in _GLUON[version].items():
                if ("3" in part and not deep) or ("downsample" in old and (unit > 1 or (stage == 1 and not deep))):
                    continue
                kind = "conv" if "conv" in part or old == "downsample" else "batchnorm"
                theirs[f"{prefix}stage{stage}_{kind}{made[kind]}"] = f"stage{stage}_unit{unit}_{part}"
                made[kind] += 1
    return _gluon(names, "_", theirs, list(units), version, deep)


def _gluon(names: Collection[str], dot: str, theirs: dict[str, str], units: list[int], version: int, deep: bool) -> Net:
    """theirs: Gluon's name of a module -> the example's."""
    depth = _depth(units, deep)
    ours = _timms(units) if version == 1 and not deep else _ours(units, version)
    model = f"resnet{depth}" if version == 1 and not deep else f"gluon-resnet{depth}-v{version}"
    fixed = tuple(f"{old}{dot}gamma" for old, part in theirs.items() if part == "bn_data")
    return Net(model, _named(names, dot, {old: ours[part] for old, part in theirs.items() if part in ours}), fixed)


def _ours(units: list[int], version: int, stem: tuple[str, ...] = ("conv0", "bn0", "relu", "pool")) -> dict[str, str]:
    """The example's names of modules -> those of CifarResNet and MxnetResNet."""
    layers = [*(["bn_data"] if version == 2 else []), *stem]
    found = {part: f"features.{place}" for place, part in enumerate(layers)}
    each = [f"stage{stage}_unit{unit}" for stage, count in enumerate(units, 1) for unit in range(1, count + 1)]
    for place, at in enumerate(each, len(layers)):
        found |= {f"{at}_{part}": f"features.{place}.{new}" for part, new in _OURS[version].items()}
    return found | {"bn1": f"features.{len(layers) + len(each)}", "fc1": "head"}


def _timms(units: list[int]) -> dict[str, str]:
    """The same -> those of timm's resnet18 and resnet34, which compute what Gluon's do."""
    parts = {"conv1": "conv1", "bn1": "bn1", "conv2": "conv2", "bn2": "bn2", "conv1sc": "downsample.0",
             "sc": "downsample.1"}  # fmt: skip
    found = {"conv0": "conv1", "bn0": "bn1", "fc1": "fc"}
    for stage, count in enumerate(units, 1):
        for unit in range(1, count + 1):
            at = f"layer{stage}.{unit - 1}"
            found |= {f"stage{stage}_unit{unit}_{part}": f"{at}.{new}" for part, new in parts.items()}
    return found


def _named(names: Collection[str], dot: str, modules: dict[str, str]) -> dict[str, str]:
    """Arrays of these modules, as far as they are there."""
    every = {f"{old}{dot}{last}": f"{new}.{here}" for old, new in modules.items() for last, here in _LAST.items()}
    return {old: new for old, new in every.items() if old in names}


def _counted(names: Collection[str], pattern: str) -> list[int]:
    """How many names match in each stage, which is the pattern's first group."""
    stages = [int(found[1]) for name in names if (found := re.fullmatch(pattern, name))]
    return [stages.count(stage) for stage in sorted(set(stages))]


def _depth(units: list[int], deep: bool) -> int:
    found = (_BOTTLENECK if deep else _BASIC).get(tuple(units))
    if found is None:
        raise ShoalError(f"weights of a ResNet with stages of {_listed(units)} units, of which none is known")
    return found


def _listed(counts: list[int]) -> str:
    return ", ".join(map(str, counts)) or "no"
