"""Units: the pieces of a model that are gathered whole, one after another, to be computed with."""

from __future__ import annotations

from torch import nn

_LEAST = 0.01
"""Part of a model's parameters below which a block is no unit: gathering it would cost more than it saves."""


def units(model: nn.Module) -> list[str]:
    """Names of the model's blocks, in its order: what its sequences and lists hold. The rest is one unit of its own.

    Only what is called as a whole can be a unit, and blocks are; a lone layer only where torch itself calls it.
    """
    least = max(1.0, _LEAST * _count(model))
    found: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, (nn.Sequential, nn.ModuleList)):
            continue
        plain = type(module).forward is nn.Sequential.forward
        for key, child in module.named_children():
            opened = isinstance(child, (nn.Sequential, nn.ModuleList))
            block = any(True for _ in child.children()) or plain
            path = f"{name}.{key}".removeprefix(".")
            inside = any(path.startswith(f"{other}.") for other in found)
            if not opened and block and not inside and _count(child) >= least:
                found.append(path)
    return found


def _count(module: nn.Module) -> int:
    return sum(held.numel() for held in module.parameters())
