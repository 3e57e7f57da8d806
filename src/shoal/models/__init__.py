"""Model: what is trained. Own small nets, any timm model, torchvision's alexnet and googlenet; torch-free at import."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from shoal.base.errors import ShoalError, UsageError, first_line
from shoal.recipe.part import Options

if TYPE_CHECKING:
    from torch import nn

TORCHVISION = ("alexnet", "googlenet")
"""Models taken from torchvision, because timm has none of that name."""

MXNET = (
    *(f"mxnet-resnet{depth}-v{version}" for version in (1, 2) for depth in (18, 34, 50, 101, 152, 200, 269)),
    *(f"gluon-resnet{depth}-v1" for depth in (50, 101, 152)),
    *(f"gluon-resnet{depth}-v2" for depth in (18, 34, 50, 101, 152)),
)
"""ResNets of MXNet's example and of Gluon for large images. Gluon's resnet18_v1 and resnet34_v1 are timm's resnet18 and
resnet34."""

SUFFIXES = (".safetensors", ".pt", ".pth")
"""Files that weights are read from."""

TAKEN = {
    "num_classes": "model.classes",
    "drop_rate": "model.drop",
    "drop_path_rate": "model.drop_path",
    "in_chans": "the number of image channels",
    "pretrained": "model.pretrained",
    "checkpoint_path": "model.pretrained",
}
"""Keyword arguments of timm that the recipe says in its own words."""

Rate = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class Model(Options, frozen=True, kw_only=True):
    """What is trained: the recipe's `model:` group."""

    name: str
    """A Shoal model (digits-cnn, cifar-resnet20, cifar-preresnet8, cifar-whitenet24, mxnet-resnet50-v2, lcnet_025 …),
    any timm model, or torchvision's alexnet / googlenet."""

    pretrained: bool | str = False
    """true: timm's weights. A path: weights from a .safetensors, .pt or .pth file."""

    classes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Number of classes (default: as many as the data has)."""

    drop: Rate = 0.0
    """Dropout before the classifier, 0..1 (alexnet was made for 0.5, googlenet for 0.2)."""

    drop_path: Rate = 0.0
    """Stochastic depth: chance to skip the last residual branch, falling linearly to the first; 0..1."""

    channels_last: bool = True
    """Keep images and weights in memory channel by channel of a pixel (NHWC): faster on CPUs and tensor cores."""

    compile: bool = False
    """Compile the model with torch.compile: faster steps after half a minute to minutes of compiling."""

    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Extra keyword arguments of the timm model."""

    def faults(self) -> list[tuple[str, str]]:
        found = [("options", f"'{key}' is said with {TAKEN[key]}") for key in self.options if key in TAKEN]
        if wrong := check_name(self.name):
            found.insert(0, ("name", wrong))
        if isinstance(self.pretrained, str) and not self.pretrained.endswith(SUFFIXES):
            found.append(("pretrained", f"'{self.pretrained}' is none of {', '.join(SUFFIXES)}"))
        if self.name in TORCHVISION or _is_own(self.name):
            if self.options:
                found.append(("options", f"{self.name} takes none; only timm models do"))
            if self.pretrained is True:
                found.append(("pretrained", f"{self.name} has no weights in timm; give the path of a file"))
            if self.drop_path and "resnet" not in self.name:
                found.append(("drop_path", f"{self.name} has no residual branches to skip"))
        return found


class Created(NamedTuple):
    """A model, and what a person should know about how it was made."""

    module: nn.Module
    notes: list[str]


def check_name(name: str) -> str | None:
    """None for a known model, else what is wrong with the name. Imports neither torch nor timm; takes some 30 ms."""
    if name in TORCHVISION:
        return None
    if _is_own(name):
        return _size_fault(name)
    known = _timm_names()
    if known is None:
        return f"no model called '{name}' here: timm is not installed (without it: {', '.join(names())})"
    if name.partition(".")[0] in known:  # behind the dot is the tag of pretrained weights: resnet50.a1_in1k
        return None
    import difflib  # only on the way to an error

    close = difflib.get_close_matches(name, [*names(), *known], n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(repr(one) for one in close)}?" if close else ""
    return f"no model called '{name}'{hint} (known: {len(known)} of timm, and those of `shoal list models`)"


def names(pattern: str = "*") -> list[str]:
    """Models that Shoal knows without timm, those of the papers among the CIFAR nets; `pattern` as in a shell."""
    listed = ["digits-cnn", "lcnet_025", *(f"cifar-whitenet{width}" for width in (24, 64))]
    for form in ("resnet", "preresnet"):
        listed += [f"cifar-{form}{depth}" for depth in (8, 14, 20, 32, 44, 56, 110)]
        listed += [f"cifar-{form}{depth}-bottleneck" for depth in (29, 164, 1001)]
    return [name for name in (*listed, *MXNET, *TORCHVISION) if fnmatchcase(name, pattern)]


def create(model: Model, *, classes: int, channels: int, seed: int) -> Created:
    """The model on the CPU in float32, for images `[B, channels, H, W]` and logits `[B, classes]`.

    Weights are a function of `seed` alone: torch's generator is seeded first. Memory layout and compiling are left to
    whoever places the model on a device. UsageError: an unknown name, a missing file, options the model does not take.
    ShoalError: weights that cannot be had or do not fit.
    """
    import torch

    if faults := model.faults():
        raise UsageError("; ".join(f"model.{key}: {wrong}" for key, wrong in faults))
    if isinstance(model.pretrained, str) and not Path(model.pretrained).is_file():
        raise UsageError(f"model.pretrained: no file {model.pretrained}")
    torch.manual_seed(seed)
    notes: list[str] = []
    if _is_own(model.name):
        module = _own(model, classes, channels)
    elif model.name in TORCHVISION:
        module = _torchvision(model, classes, channels)
    else:
        module = _timm(model, classes, channels, seed)
        if model.pretrained is True:
            notes += _adapted(module, classes, channels)
    if isinstance(model.pretrained, str):
        from shoal.models.weights import load_pretrained

        notes += load_pretrained(module, Path(model.pretrained))
    return Created(module, notes)


# Names


_OWN = re.compile(
    r"digits-cnn|lcnet_025|cifar-whitenet(?P<width>\d+)|cifar-(?P<pre>pre)?resnet(?P<depth>\d+)(?P<bottleneck>-bottleneck)?"
)


def _is_own(name: str) -> bool:
    return name in MXNET or _OWN.fullmatch(name) is not None


def _size_fault(name: str) -> str | None:
    """What is wrong with the number in an own name: a width has to be even, a depth 6n+2, with bottlenecks 9n+2."""
    shape = _OWN.fullmatch(name)
    if shape is not None and shape["width"] is not None and (int(shape["width"]) % 2 or not int(shape["width"])):
        return f"no model called '{name}': its width has to be even (cifar-whitenet24)"
    if shape is None or shape["depth"] is None:
        return None
    depth, layers = int(shape["depth"]), 9 if shape["bottleneck"] else 6
    if depth > 2 and depth % layers == 2:
        return None
    units = max(1, (depth - 2) // layers)
    near = [name.replace(shape["depth"], str(layers * n + 2)) for n in (units, units + 1)]
    return f"no model called '{name}': its depth has to be {layers}n+2; nearby: {', '.join(near)}"


_REGISTERED = re.compile(rb"^@register_model\b.*\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)
_RENAMED = re.compile(rb"^register_model_deprecations\(__name__, \{(.*?)^\}", re.MULTILINE | re.DOTALL)
_OLD_NAME = re.compile(rb"['\"](\w+)['\"] *: *['\"]")


@cache
def _timm_names() -> frozenset[str] | None:
    """All names timm's create_model takes, read from its installed source; None when timm is not installed.

    Importing timm would take seconds and torch with it.
    """
    from importlib.util import find_spec

    spec = find_spec("timm")
    if spec is None:
        return None
    found: set[bytes] = set()
    for folder in spec.submodule_search_locations or ():
        for file in Path(folder, "models").glob("*.py"):
            source = file.read_bytes()
            found.update(_REGISTERED.findall(source))
            for renamed in _RENAMED.findall(source):
                found.update(_OLD_NAME.findall(renamed))
    return frozenset(name.decode() for name in found)


# Makers


def _own(model: Model, classes: int, channels: int) -> nn.Module:
    if model.name in MXNET:
        from shoal.models.mxnet_resnet import MxnetResNet

        origin, depth, version = model.name.split("-")
        return MxnetResNet(
            depth=int(depth.removeprefix("resnet")),
            version=int(version.removeprefix("v")),
            gluon=origin == "gluon",
            classes=classes,
            channels=channels,
            drop=model.drop,
            drop_path=model.drop_path,
        )
    shape = _OWN.fullmatch(model.name)
    assert shape is not None
    if shape["width"] is not None:
        from shoal.models.cifar_whitenet import CifarWhitenet

        return CifarWhitenet(classes=classes, channels=channels, width=int(shape["width"]), drop=model.drop)
    if model.name == "lcnet_025":
        from shoal.models.lcnet import LcNet

        return LcNet(classes=classes, channels=channels, width=0.25, drop=model.drop)
    if shape["depth"] is None:
        from shoal.models.digits_cnn import DigitsCnn

        return DigitsCnn(classes=classes, channels=channels, drop=model.drop)
    from shoal.models.cifar_resnet import CifarResNet

    return CifarResNet(
        units=(int(shape["depth"]) - 2) // (9 if shape["bottleneck"] else 6),
        bottleneck=shape["bottleneck"] is not None,
        pre_activation=shape["pre"] is not None,
        classes=classes,
        channels=channels,
        drop=model.drop,
        drop_path=model.drop_path,
    )


def _torchvision(model: Model, classes: int, channels: int) -> nn.Module:
    """alexnet, or googlenet without its auxiliary classifiers; the first convolution is made for `channels`."""
    import torchvision
    from torch import nn

    first = partial(nn.Conv2d, channels, 64)
    if model.name == "alexnet":
        net = torchvision.models.alexnet(num_classes=classes, dropout=model.drop)
        if channels != 3:
            net.features[0] = first(kernel_size=11, stride=4, padding=2)
        return net
    net = torchvision.models.googlenet(num_classes=classes, dropout=model.drop, aux_logits=False, init_weights=True)
    if channels != 3:
        net.conv1.conv = first(kernel_size=7, stride=2, padding=3, bias=False)
    return net


def _timm(model: Model, classes: int, channels: int, seed: int) -> nn.Module:
    import timm
    import torch

    # Rates are always passed: many timm models would else take a rate of their own that no recipe shows.
    arguments = {
        **model.options,
        "num_classes": classes,
        "in_chans": channels,
        "drop_rate": model.drop,
        "drop_path_rate": model.drop_path,
    }
    without = {"in_chans": 3, "drop_rate": 0.0, "drop_path_rate": 0.0}  # what a model that lacks the argument does
    refused: list[str] = []
    while True:
        torch.manual_seed(seed)
        try:
            module = timm.create_model(model.name, pretrained=model.pretrained is True, **arguments)
            break
        except TypeError as error:
            found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            if found is None or found[1] not in arguments:
                raise UsageError(f"model {model.name}: {first_line(error)}") from error
            key = found[1]
            if key not in without or arguments[key] != without[key]:
                refused.append(TAKEN.get(key, f"model.options.{key}"))
            del arguments[key]
        except Exception as error:  # hub, network and assertion errors of a hundred models have no common base
            what = "cannot get timm's weights" if model.pretrained is True else "timm cannot make it"
            raise ShoalError(f"model {model.name}: {what}: {first_line(error)}") from error
    if refused:
        raise UsageError(f"model {model.name} does not take {', '.join(refused)}")
    return module


def _adapted(module: Any, classes: int, channels: int) -> list[str]:
    """Notes on what timm changed in its weights to fit them."""
    published = module.pretrained_cfg
    notes = []
    if published.get("num_classes", classes) != classes:
        notes.append(f"classifier head re-made: timm's weights have {published['num_classes']} classes, not {classes}")
    if (published.get("input_size") or (channels,))[0] != channels:
        notes.append(f"first layer adapted from {published['input_size'][0]} to {channels} channels")
    return notes
