"""safetensors: the weights by their names, for timm's models and for `model.pretrained`. Metadata are its header's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save


def write(graph: Any, example: torch.Tensor, path: Path, metadata: Mapping[str, str]) -> None:
    """graph: its `model` is written."""
    weights = {name: tensor.contiguous().clone() for name, tensor in graph.model.state_dict().items()}
    path.write_bytes(save(weights, metadata=dict(metadata)))  # its save_file hides the file from other users


def reader(graph: Any, path: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    """The same model with the weights of the file."""
    other = copy.deepcopy(graph)
    for tensor in other.model.state_dict().values():
        tensor.zero_()
    other.model.load_state_dict(load_file(path))
    return other
