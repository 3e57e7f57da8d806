"""Updater: an optimizer on a server, told by name and options. Never a pickle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def register(kind: type[torch.optim.Optimizer], *, elementwise: bool = False) -> type[torch.optim.Optimizer]:
    """Lets servers of this program make `kind` too; a decorator. elementwise: no number depends on its neighbours, so
    that tensors may be cut anywhere."""
    raise NotImplementedError


def describe(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> dict[str, Any]:
    """{"name", "groups": [{"params": [numbers], **options}]}; `parameters` are all of the optimizer's, numbered as in
    the layout. Plain numbers and text only. ValueError names what cannot be told."""
    raise NotImplementedError


def elementwise(description: dict[str, Any]) -> bool:
    """Whether its tensors may be cut in the middle; else the layout must be `whole`."""
    raise NotImplementedError
