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


def example_names(units: int, deep: bool = False) -> list[str]:
    """The arrays of symbols/resnet.py with three stages of `units`."""
    norms = ["bn_data", "bn1"]
    names = ["conv0_weight", "fc1_weight", "fc1_bias"]
    for stage in (1, 2, 3):
        for unit in range(1, units + 1):
            at = f"stage{stage}_unit{unit}"
            norms += [f"{at}_bn{number}" for number in (1, 2, *((3,) if deep else ()))]
            names += [f"{at}_conv{number}_weight" for number in (1, 2, *((3,) if deep else ()))]
            names += [f"{at}_sc_weight"] if unit == 1 else []
    return names + [f"{norm}_{part}" for norm in norms for part in ("gamma", "beta", "moving_mean", "moving_var")]


def gluon_names(blocks: tuple[int, ...]) -> list[str]:
    norms, names = ["features.1"], ["features.0.weight", "output.weight", "output.bias"]
    for stage, count in enumerate(blocks):
        for block in range(count):
            at = f"features.{stage + 4}.{block}"
            names += [f"{at}.body.0.weight", f"{at}.body.3.weight"]
            norms += [f"{at}.body.1", f"{at}.body.4"]
            if stage and not block:
                names.append(f"{at}.downsample.0.weight")
                norms.append(f"{at}.downsample.1")
    return names + [f"{norm}.{part}" for norm in norms for part in ("gamma", "beta", "running_mean", "running_var")]
