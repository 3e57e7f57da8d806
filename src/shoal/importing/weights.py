"""Weights: a file of MXNet, torchvision or timm as a .safetensors with Shoal's names, checked against the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.base.errors import ShoalError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

TORCH = (".safetensors", ".pth", ".pt", ".tar")
_WAY_OUT = (
    "a .pdparams is a pickle, which runs whatever is in it, and is never opened; where you trust it, have "
    "Paddle write it: docs/from-paddleclas.md has the five lines"
)


def convert(file: Path, out: Path, model: str | None) -> list[str]:
    """Writes `out` and returns what a person should know. ShoalError: unreadable, damaged, a pickle, of another net."""
    if file.suffix in (".pdparams", ".pdopt", ".pkl", ".pickle"):
        raise UsageError(f"{file}: {_WAY_OUT}")
    if file.suffix not in (".params", *TORCH):
        raise UsageError(f"{file}: expected .params of MXNet, or {', '.join(TORCH)}")
    if not file.is_file():
        raise UsageError(f"{file}: no such file")
    notes = []
    if file.suffix == ".params":
        model, state, notes = _mxnet(file, model)
    else:
        from shoal.models.weights import read

        state = read(file)
    if model is None:
        raise UsageError(f"--model: which model is {file} of? `shoal list models` names them")
    state = _fitted(file, model, state)
    _save(state, out)
    tensors = sum(tensor.numel() for tensor in state.values())
    return [*notes, f"weights  {out}  ({len(state)} tensors, {tensors:,} numbers)",
            f"use      shoal train RECIPE model={model} model.pretrained={out}"]  # fmt: skip


def _mxnet(file: Path, model: str | None) -> tuple[str, dict[str, Tensor], list[str]]:
    import torch

    from shoal.importing.mxnet_nets import recognise
    from shoal.importing.params import read

    arrays = read(file)
    try:
        net = recognise(arrays)
    except ShoalError as error:
        raise ShoalError(f"{file}: {error}") from None
    if model not in (None, net.model):
        raise ShoalError(f"{file}: holds weights of {net.model}, not of {model}")
    if strange := sorted(set(arrays) - set(net.names)):
        raise ShoalError(
            f"{file}: {strange[0]} is no part of {net.model}" + (f" ({len(strange)} such)" if strange[1:] else "")
        )
    state = {net.names[name]: torch.from_numpy(array.astype("float32")) for name, array in arrays.items()}
    for name in set(net.fixed) & set(arrays):  # MXNet computes with 1 there, whatever the file holds
        state[net.names[name]] = torch.ones_like(state[net.names[name]])
    notes = [f"model    {net.model}, as the names of the arrays say"]
    if net.raw:
        less = "images   pixels less 123.68,116.779,103.939, as the example fed it"
        notes.append(f"{less}: data.mean=[123.68,116.779,103.939] data.std=[1,1,1]")
    return net.model, state, notes


def _fitted(file: Path, model: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state of `model`, with as many classes as the file has; timm's own renaming is tried where names differ."""
    from shoal.models import Model, check_name, create
    from shoal.models.weights import check_fit

    if fault := check_name(model):
        raise UsageError(f"--model {model}: {fault}")
    created: Any = create(Model(name=model), classes=_classes(state), channels=3, seed=0).module
    wanted = created.state_dict()
    if set(wanted) - set(state) - {key for key in wanted if key.endswith("num_batches_tracked")}:
        state = _renamed_by_timm(created, state)
    for key, tensor in wanted.items():
        if key.endswith("num_batches_tracked"):
            state.setdefault(key, tensor)
    try:
        check_fit(created, state)
    except ShoalError as error:
        raise ShoalError(f"{file}: for {model}, {error}") from None
    return {key: state[key].to(tensor.dtype).contiguous() for key, tensor in wanted.items()}


def _classes(state: dict[str, Tensor]) -> int:
    """Outputs of the last matrix: what a classifier ends with."""
    matrices = [tensor for tensor in state.values() if tensor.ndim == 2]
    return matrices[-1].shape[0] if matrices else 1000


def _renamed_by_timm(module: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's families know torchvision's names of their tensors; those that do not leave them as they are."""
    import inspect
    import sys

    family = sys.modules[type(module).__module__]
    for name in ("checkpoint_filter_fn", "_filter_fn", "_filter_pretrained"):
        if function := getattr(family, name, None):
            given = (state, module)[: len(inspect.signature(function).parameters)]
            return dict(function(*given))
    return state


def _save(state: dict[str, Tensor], out: Path) -> None:
    from safetensors.torch import save

    from shoal.base.files import write_whole

    try:
        write_whole(out, save(state))
    except OSError as error:
        raise UsageError(f"--to {out}: cannot be written ({error.strerror})") from None
