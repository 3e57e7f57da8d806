"""Carving: makes of a whole model the stretch between two boundaries, and runs it.

The model's own `forward` runs at every stage, so that whatever it does between its layers is done where it belongs:
layers before the stretch are stood in for by tensors without memory (torch's `meta`), at its beginning comes what the
stage before has sent, and at its end the pass is over. A tensor that would go past a boundary meets one without memory,
and torch refuses to go on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from shoal.strategies.divided.anatomy import Call

Calls = dict[str, Call]


class _Over(Exception):
    """The stretch has ended, with this value."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value


class _Absent(nn.Module):
    """In the place of a layer that another stage has."""

    def __init__(self, call: Call | None) -> None:
        super().__init__()
        self._call = call

    def forward(self, x: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        if self._call is None or self._call.shape is None:
            raise RuntimeError("a layer of another stage gives more than one tensor")
        return torch.empty(len(x), *self._call.shape, dtype=self._call.dtype, device="meta")


class _End(nn.Module):
    """In the place of the first layer of the next stage."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise _Over(x)


class _Begin:
    """A hook at the first layer: hands it what the stage before has sent."""

    sent: torch.Tensor | None = None

    def __call__(self, module: nn.Module, args: tuple) -> tuple:
        return (self.sent,)


@dataclass
class Ends:
    """How a stretch of a model begins and ends, kept at the model itself so that copies of it have their own."""

    begin: _Begin | None
    shape: tuple[int, ...]
    """Of what the whole model takes, behind the images."""


def carve(
    model: nn.Module, calls: Calls, first: str | None, end: str | None, loose: set[str], shape: tuple[int, ...]
) -> nn.Module:
    """Leaves of `model`, in place, the stretch from the module `first` (None: the start) to `end` (None: the end).

    loose: parameters of modules with others below them, and buffers of such, that this stretch uses. What stays keeps
    its name. shape: of the model's input, behind the images.
    """
    begins = calls[first].began if first else 0
    ends = calls[end].began if end else max(call.ended for call in calls.values()) + 1
    spine = _above(first) | _above(end) | {""}
    _strip(model, "", calls, spine, begins, ends, first)
    if end is not None:
        _put(model, end, _End())
    for name in spine:
        _loosen(model.get_submodule(name), name, loose)
    begin = _Begin() if first else None
    if first and begin is not None:
        model.get_submodule(first).register_forward_pre_hook(begin)
    model._ends = Ends(begin, shape)  # type: ignore[assignment]
    return model


def run(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A carved model's part of a forward pass: of the images, or of what the stage before made of them."""
    ends: Ends = model._ends  # type: ignore[assignment]
    given = x
    if ends.begin is not None:
        ends.begin.sent = x
        given = torch.empty(len(x), *ends.shape, device="meta")
    try:
        return model(given)
    except _Over as over:
        return over.value
    finally:
        if ends.begin is not None:
            ends.begin.sent = None


def _above(name: str | None) -> set[str]:
    """Names of the modules that a module lies in."""
    parts = (name or "").split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts))}


def _strip(
    module: nn.Module, path: str, calls: Calls, spine: set[str], begins: int, ends: int, first: str | None
) -> None:
    """Puts stand-ins where layers of other stages were; what is never called stays with the first stage."""
    for key, child in list(module.named_children()):
        name = f"{path}.{key}".removeprefix(".")
        call = calls.get(name)
        if name in spine:
            _strip(child, name, calls, spine, begins, ends, first)
        elif call is None and any(True for _ in child.children()) and any(_below(name, calls)):
            _strip(child, name, calls, spine, begins, ends, first)  # a list, which is never called itself
        elif call is None:
            if first is not None:
                setattr(module, key, _Absent(None))
        elif not begins <= call.began < ends:
            setattr(module, key, _Absent(call))


def _below(name: str, calls: Calls) -> list[str]:
    return [other for other in calls if other.startswith(f"{name}.")]


def _put(model: nn.Module, name: str, other: nn.Module) -> None:
    parent, _, key = name.rpartition(".")
    setattr(model.get_submodule(parent), key, other)


def _loosen(module: nn.Module, path: str, loose: set[str]) -> None:
    """Takes the memory of tensors that this stage does not use, which stay plain attributes."""
    for held in (module._parameters, module._buffers):
        for key in [key for key, tensor in held.items() if tensor is not None]:
            if f"{path}.{key}".removeprefix(".") not in loose:
                tensor = held.pop(key)
                setattr(module, key, tensor.detach().to("meta"))  # type: ignore[union-attr]
