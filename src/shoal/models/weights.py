"""Weights: whether they fit a model, told by the names of the tensors that do not, and how they come out of a file."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shoal.base.errors import ShoalError, first_line


def check_fit(model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """ShoalError that names tensors of `state` which are missing, left over or of another shape."""
    wrong = _misfits(model.state_dict(), state)
    if wrong:
        raise ShoalError(f"these weights are of another model: {_told(wrong)}")


def load_pretrained(model: nn.Module, path: Path, option: str = "model.pretrained") -> list[str]:
    """Loads a file's weights; a head that does not fit is left as it was made, and the note returned says so.

    option: the recipe's, for messages. ShoalError names tensors that do not fit.
    """
    theirs, ours = _read(path, option), model.state_dict()
    head = _head(model)
    notes = []
    if any(key not in theirs or theirs[key].shape != ours[key].shape for key in head):
        had = f"{head[0]} (weights {_shape(theirs, head[0])}, model {_shape(ours, head[0])})"
        notes.append(f"classifier head re-made, {path} has another: {had}")
        theirs = {key: value for key, value in theirs.items() if key not in head}
        ours = {key: value for key, value in ours.items() if key not in head}
    # Files of other systems lack the counts of batches, and nothing here reads them.
    ours = {key: value for key, value in ours.items() if key in theirs or not key.endswith("num_batches_tracked")}
    wrong = _misfits(ours, theirs)
    if wrong:
        raise ShoalError(f"{option}: {path} does not fit the model: {_told(wrong)}")
    model.load_state_dict(theirs, strict=False)
    return notes


def _misfits(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> list[str]:
    return [
        f"{key} (weights {_shape(theirs, key)}, model {_shape(ours, key)})"
        for key in dict.fromkeys((*ours, *theirs))
        if _shape(theirs, key) != _shape(ours, key)
    ]


def _told(wrong: list[str]) -> str:
    return ", ".join(wrong[:4]) + (f", … {len(wrong)} in all" if len(wrong) > 4 else "")


def _shape(weights: Mapping[str, torch.Tensor], key: str) -> str:
    return str(list(weights[key].shape)) if key in weights else "none"


def _read(path: Path, option: str) -> dict[str, torch.Tensor]:
    """Tensors by name, out of the nests and prefixes that trainers, DistributedDataParallel and torch.compile add."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: Any = load_file(path)
        else:
            _refuse_pickles(path)
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and safetensors errors have no common base
        reason = first_line(error)
        raise ShoalError(f"{option}: cannot read {path}: {reason}") from error
    for nest in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(nest), Mapping):
            found = found[nest]
    if not isinstance(found, Mapping) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ShoalError(f"{option}: {path} holds no state dict (tensors by name)")
    return {re.sub(r"^((module|_orig_mod)\.)+", "", key): value for key, value in found.items()}


def _refuse_pickles(path: Path) -> None:
    """ValueError: no zip file, as torch writes since 1.6."""
    if not zipfile.is_zipfile(path):
        raise ValueError(
            "no zip file, as torch has written since 1.6: damaged, or a pickle, which is never opened; where you trust "
            "it, torch.load it and torch.save its state dict anew"
        )


def read(path: Path) -> dict[str, torch.Tensor]:
    """A file's tensors by name, for whoever converts them. ShoalError: unreadable, a pickle, or no state dict."""
    return _read(path, "weights")


def _head(module: nn.Module) -> list[str]:
    """Names of the classifier's tensors: the layers timm calls so, else the last linear layer."""
    if hasattr(module, "get_classifier"):
        layers: Any = module.get_classifier()  # type: ignore[operator]
        layers = layers if isinstance(layers, tuple) else (layers,)
    else:
        layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1:]
    parameters = {id(one) for layer in layers for one in layer.parameters()}
    return [name for name, one in module.named_parameters() if id(one) in parameters]
