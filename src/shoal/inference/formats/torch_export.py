"""torch.export: a .pt2 for torch without Shoal, and for AOTInductor. Metadata are its extra file `metadata.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from shoal.inference.formats import silent, traced


def write(graph: torch.nn.Module, example: torch.Tensor, path: Path, metadata: Mapping[str, str]) -> None:
    """ShoalError: a model that torch.export cannot follow."""
    program = traced(graph, example)
    with silent():
        torch.export.save(program, path, extra_files={"metadata.json": json.dumps(dict(metadata), ensure_ascii=False)})


def reader(graph: torch.nn.Module, path: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    with silent():
        return torch.export.load(path).module()
