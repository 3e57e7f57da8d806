"""Weights of the old world: a writer of MXNet's .params, and models of Shoal's under MXNet's names."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
import torch

from shoal.importing import params
from shoal.importing.mxnet_nets import recognise
from shoal.models import Model, create


def written(arrays: Mapping[str, np.ndarray], version: int | None = params.V2) -> bytes:
    """A .params as `mx.nd.save` writes it; `version` None: the form before V1, with 32-bit sides."""
    kinds = {np.dtype(text): number for number, text in enumerate(params.TYPES)}
    out = struct.pack("<QQQ", params.LIST_MAGIC, 0, len(arrays))
    for array in arrays.values():
        if version is not None:
            out += struct.pack("<I", version)
        if version in (params.V2, params.V3):
            out += struct.pack("<i", 0)
        side = "I" if version is None else "q"
        out += struct.pack(f"<i{array.ndim}{side}", array.ndim, *array.shape)
        out += struct.pack("<iii", 1, 0, kinds[array.dtype]) + array.tobytes()
    out += struct.pack("<Q", len(arrays))
    for name in arrays:
        out += struct.pack("<Q", len(name.encode())) + name.encode()
    return out


def made(name: str, classes: int = 5, pretrained: str | bool = False) -> torch.nn.Module:
    module = create(Model(name=name, pretrained=pretrained), classes=classes, channels=3, seed=3).module
    generator = torch.Generator().manual_seed(7)
    if not pretrained:  # statistics as after a training, so that a mixed-up name changes the outputs
        for key, tensor in module.state_dict().items():
            if tensor.ndim == 1 and tensor.is_floating_point() and not key.startswith("features.0.weight"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return module.eval()


def as_mxnet(name: str, names: list[str]) -> dict[str, np.ndarray]:
    """The model's arrays under MXNet's names: `recognise` of them, turned round."""
    state = made(name).state_dict()
    mapping = {new: old for old, new in recognise(names).names.items() if old in names}
    return {mapping[key]: tensor.numpy() for key, tensor in state.items() if key in mapping}


NORM = ("gamma", "beta", "moving_mean", "moving_var")
GLUON = {
    1: {"conv1": "body.0", "bn1": "body.1", "conv2": "body.3", "bn2": "body.4", "conv3": "body.6", "bn3": "body.7",
        "sc": "downsample.0", "sc_bn": "downsample.1"},
    2: {**{part: part for part in ("bn1", "conv1", "bn2", "conv2", "bn3", "conv3")}, "sc": "downsample"},
}  # fmt: skip


class OldNet:
    """How one of MXNet's ResNets calls its modules. Three stages: of the example, for small images."""

    def __init__(self, units: tuple[int, ...], version: int = 2, *, deep: bool = False, gluon: bool = False) -> None:
        self.units, self.version, self.deep, self.gluon = units, version, deep, gluon
        self.large = len(units) == 4

    def unit(self, stage: int, unit: int, part: str) -> str:
        """stage, unit: from 1 on. part: bn1, conv1 …, sc (of the shortcut) and sc_bn."""
        if self.gluon:
            return f"features.{stage + self.version + 2}.{unit - 1}.{GLUON[self.version][part]}"
        part = {"sc": "conv1sc", "sc_bn": "sc"}.get(part, part) if self.version == 1 else part
        return f"stage{stage}_unit{unit}_{part}"

    def outer(self, part: str) -> str:
        """part: bn_data, conv0, bn0, bn1, fc1."""
        if not self.gluon:
            return part
        first = ["bn_data", "conv0", "bn0"][2 - self.version :]
        return {"fc1": "output", "bn1": "features.9"}.get(part) or f"features.{first.index(part)}"

    def projects(self, stage: int, unit: int) -> bool:
        return unit == 1 and (not self.gluon or self.deep or stage > 1)

    def of(self, module: str, last: str) -> str:
        if self.gluon:
            return f"{module}.{last.replace('moving', 'running')}"
        return f"{module}_{last}"

    def names(self) -> list[str]:
        """Of all arrays."""
        norms, convs = ["bn0"] if self.large else [], ["conv0"]
        norms += ["bn_data", "bn1"] if self.version == 2 else []
        norms, convs = [self.outer(part) for part in norms], [self.outer(part) for part in convs]
        biased = []
        for stage, count in enumerate(self.units, 1):
            for unit in range(1, count + 1):
                for number in range(1, 4 if self.deep else 3):
                    norms.append(self.unit(stage, unit, f"bn{number}"))
                    convs.append(self.unit(stage, unit, f"conv{number}"))
                    if self.gluon and self.version == 1 and self.deep and number != 2:
                        biased.append(convs[-1])
                if self.projects(stage, unit):
                    convs.append(self.unit(stage, unit, "sc"))
                    norms += [self.unit(stage, unit, "sc_bn")] if self.version == 1 else []
        head = self.outer("fc1")
        return [
            *(self.of(norm, last) for norm in norms for last in NORM),
            *(self.of(conv, "weight") for conv in (*convs, head)),
            *(self.of(conv, "bias") for conv in (*biased, head)),
        ]


def example_names(units: int, deep: bool = False) -> list[str]:
    """The arrays of symbols/resnet.py with three stages of `units`."""
    return OldNet((units,) * 3, deep=deep).names()
