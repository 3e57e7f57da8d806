"""Updater: an optimizer where the parameters are held, told by name and options. Never a pickle."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from shoal.base.errors import UsageError, did_you_mean
from shoal.kvstore.layout import Layout

Kind = type[torch.optim.Optimizer]
K = TypeVar("K", bound=Kind)
_registered: dict[str, Kind] = {}
_elementwise = {
    *("sgd", "adam", "adamw", "adamax", "nadam", "radam", "rmsprop", "adagrad", "adadelta", "rprop", "asgd"),
    *("timm.lion", "timm.nadamw", "timm.sgdw", "timm.rmsproptf"),
}
"""No number depends on its neighbours: tensors may be cut anywhere, and neighbours may be one tensor."""


def register(kind: K, *, elementwise: bool = False) -> K:
    """Lets this program's servers make `kind` too; a decorator. elementwise: no number depends on its neighbours, so
    that tensors may be cut anywhere."""
    _registered[kind.__name__.lower()] = kind
    if elementwise:
        _elementwise.add(kind.__name__.lower())
    return kind


def kind_of(name: str) -> tuple[str, Kind]:
    """The optimizer called `name` (sgd, adamw, timm.lion, lion, one that was registered) and its full name."""
    lowered = name.lower()
    known: dict[str, Kind] = {
        kind.__name__.lower(): kind for kind in vars(torch.optim).values() if _is_kind(kind, torch.optim.Optimizer)
    } | _registered
    if lowered in known:
        return lowered, known[lowered]
    import timm.optim

    of_timm = {
        f"timm.{kind.__name__.lower()}": kind
        for kind in vars(timm.optim).values()
        if _is_kind(kind, torch.optim.Optimizer) and kind.__module__.startswith("timm.")
    }
    for full in (lowered, f"timm.{lowered}"):
        if full in of_timm:
            return full, of_timm[full]
    raise UsageError(f"no optimizer called '{name}'{did_you_mean(lowered, [*known, *of_timm])}")


def _is_kind(value: Any, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base) and value is not base


def describe(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> dict[str, Any]:
    """{"name", "groups": [{"params": [numbers], **options}]}; `parameters` are all of the optimizer's, numbered as in
    the layout. Plain numbers and text only. ValueError names what cannot be told."""
    kind = type(optimizer)
    timms = kind.__module__.startswith("timm.")
    name = f"timm.{kind.__name__.lower()}" if timms else kind.__name__.lower()
    if kind_of(name)[1] is not kind:
        raise UsageError(f"optimizer {kind.__module__}.{kind.__name__}: servers do not know it; register it")
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    groups = []
    for group in optimizer.param_groups:
        options = {key: value for key, value in group.items() if key != "params"}
        for key, value in options.items():
            if not _plain(value):
                raise UsageError(f"optimizer {name}: option {key} is {type(value).__name__}, not a number or text")
        groups.append({"params": [numbers[id(parameter)] for parameter in group["params"]], **options})
    return {"name": name, "groups": groups}


def named(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The description of an optimizer for one tensor."""
    full, kind = kind_of(name)
    known = inspect.signature(kind.__init__).parameters
    for key, value in options.items():
        if key not in known:
            raise UsageError(f"optimizer {name} has no option '{key}'{did_you_mean(key, [*known][2:])}")
        if not _plain(value):
            raise UsageError(f"optimizer {name}: option {key} is {type(value).__name__}, not a number or text")
    if _stretched(options):
        raise UsageError(f"optimizer {name}: nesterov needs a dampening of 0")
    if "fused" in known and not {"fused", "foreach"} & options.keys():
        options = {**options, "fused": True}
    return {"name": full, "groups": [{"params": [0], **options}]}


def elementwise(description: dict[str, Any]) -> bool:
    """Whether its tensors may be cut in the middle; else the layout must be `whole`."""
    return description["name"] in _elementwise


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


class Updater:
    """An optimizer over [low, high) of a flat tensor. Its state speaks of whole tensors, however they are cut."""

    def __init__(
        self,
        description: dict[str, Any],
        layout: Layout,
        low: int,
        values: torch.Tensor,
        gradient: torch.Tensor,
    ) -> None:
        """values, gradient: what the shard holds, [high - low]; both are used in place."""
        name, kind = kind_of(description["name"])
        self.description = description
        self._offset = values.storage_offset()
        merge = not layout.whole and name in _elementwise
        if not merge and not layout.whole and len(values) != layout.size:
            raise UsageError(f"optimizer {name} works on whole tensors, but the parameters are cut evenly")
        if any(group.get("max_grad_norm") for group in description["groups"]) and len(values) != layout.size:
            raise UsageError(
                f"optimizer {name}: max_grad_norm needs the whole gradient in one place; use optim.clip_norm"
            )
        self._pieces: list[_Piece] = []
        groups = []
        for number, described in enumerate(description["groups"]):
            options = {key: tuple(v) if isinstance(v, list) else v for key, v in described.items() if key != "params"}
            pieces = _pieces(layout, sorted(described["params"]), low, values, gradient, merge)
            self._pieces += pieces
            groups.append((number, {**options, "params": [piece.parameter for piece in pieces]}))
        self._groups = [number for number, group in groups if group["params"]]
        groups = [group for _, group in groups if group["params"]]
        taken = inspect.signature(kind.__init__).parameters
        self.optimizer: torch.optim.Optimizer | None = None
        if groups:
            first = {key: value for key, value in groups[0].items() if key in taken and key != "params"}
            if _stretched(first):
                first["dampening"] = 0.0  # torch refuses it there, and takes it from the groups
            try:
                self.optimizer = kind(groups, **first)  # type: ignore[call-arg]
                # Without torch's hooks and profiler marks around it, which take as long as a small step.
                self._step = kind.step.__wrapped__ if getattr(kind.step, "hooked", False) else kind.step
                self._begin()
            except (TypeError, ValueError, RuntimeError) as error:
                raise UsageError(f"optimizer {name}: {error}") from None

    def _begin(self) -> None:
        """torch would take the whole first gradient into a momentum, whatever the dampening."""
        for group in self.optimizer.param_groups if self.optimizer else ():
            for parameter in group["params"] if _stretched(group) else ():
                self.optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}  # type: ignore[union-attr]

    def use(self, gradient: torch.Tensor) -> None:
        """From now on the gradient lies there, [high - low]."""
        for piece in self._pieces:
            at = piece.parameter.storage_offset() - self._offset
            piece.parameter.grad = torch.as_strided(
                gradient, piece.parameter.shape, piece.parameter.stride(), gradient.storage_offset() + at
            )

    def step(self, lr: float | None = None) -> None:
        """Uses the gradient. lr: times a group's `lr_scale`; None: as it stands."""
        if self.optimizer is None:
            return
        if lr is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = lr * group.get("lr_scale", 1.0)
        self._step(self.optimizer)

    def state(self) -> dict[str, torch.Tensor]:
        """By `NUMBER.KEY` for what belongs to a whole tensor, `NUMBER.KEY.START` for a piece of it in memory order."""
        found: dict[str, torch.Tensor] = {}
        held = self.optimizer.state if self.optimizer else {}
        for piece in self._pieces:
            for key, value in held.get(piece.parameter, {}).items():
                if value is None:
                    continue
                value = torch.as_tensor(value).detach()
                for part in piece.parts:
                    if value.shape == piece.parameter.shape:
                        flat = _memory_order(value, piece.parameter)
                        found[f"{part.number}.{key}.{part.start}"] = flat[part.at : part.at + part.size]
                    else:
                        found[f"{part.number}.{key}"] = value
        for number, group in zip(self._groups, self.optimizer.param_groups if self.optimizer else (), strict=True):
            told = self.description["groups"][number]
            for key, value in group.items():  # some optimizers count steps there
                if key not in ("params", "lr") and _is_number(value) and value != told.get(key):
                    found[f"group.{number}.{key}"] = _as_tensor(value)
        return found

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """What `state` gave, of all servers: pieces may have been cut elsewhere."""
        if self.optimizer is None:
            return
        self.optimizer.state.clear()
        self._begin()
        for number, group in zip(self._groups, self.optimizer.param_groups, strict=True):
            for name, value in state.items():
                if name.startswith(f"group.{number}."):
                    group[name.split(".")[2]] = _from_tensor(value)
        state = {name: value for name, value in state.items() if not name.startswith("group.")}
        keys = {tuple(name.split(".")[:2]) for name in state}
        for piece in self._pieces:
            held: dict[str, Any] = {}
            for key in {key for number, key in keys if int(number) in {part.number for part in piece.parts}}:
                whole = state.get(f"{piece.parts[0].number}.{key}")
                if whole is not None:
                    held[key] = whole.clone()
                    continue
                value = torch.zeros_like(piece.parameter)
                flat = _memory_order(value, piece.parameter)
                for part in piece.parts:
                    flat[part.at : part.at + part.size] = _joined(state, part, key)
                held[key] = value
            if held:
                self.optimizer.state[piece.parameter] = held


def _stretched(group: dict[str, Any]) -> bool:
    """Momentum over several pushes of a batch (`Pace`): the one use of Nesterov's with dampening."""
    return bool(group.get("nesterov") and group.get("dampening"))


class _Part:
    """A stretch of one tensor inside a piece."""

    def __init__(self, number: int, start: int, size: int, at: int) -> None:
        self.number, self.start, self.size, self.at = number, start, size, at


class _Piece:
    """What the optimizer sees as one parameter."""

    def __init__(self, parameter: torch.nn.Parameter, parts: list[_Part]) -> None:
        self.parameter, self.parts = parameter, parts


def _pieces(
    layout: Layout, numbers: list[int], low: int, values: torch.Tensor, gradient: torch.Tensor, merge: bool
) -> list[_Piece]:
    high = low + len(values)
    starts, sizes = layout.starts, layout.sizes
    pieces: list[_Piece] = []
    runs: list[tuple[int, int, list[_Part]]] = []
    for number in numbers:
        begin, end = max(starts[number], low), min(starts[number] + sizes[number], high)
        if begin >= end:
            continue
        if merge and runs and runs[-1][1] == begin:
            first, _, parts = runs[-1]
            parts.append(_Part(number, begin - starts[number], end - begin, begin - first))
            runs[-1] = (first, end, parts)
        else:
            runs.append((begin, end, [_Part(number, begin - starts[number], end - begin, 0)]))
    for begin, end, parts in runs:
        view: Callable[[torch.Tensor], torch.Tensor]
        if merge:
            view = lambda flat, begin=begin, end=end: flat[begin - low : end - low]  # noqa: E731
        else:
            number = parts[0].number
            view = lambda flat, number=number, begin=begin: torch.as_strided(  # noqa: E731
                flat, layout.shapes[number], layout.strides[number], flat.storage_offset() + begin - low
            )
        parameter = torch.nn.Parameter(view(values), requires_grad=False)
        parameter.grad = view(gradient)
        pieces.append(_Piece(parameter, parts))
    return pieces


def _memory_order(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`value`, which has the shape of `like`, as one dimension in the memory order of `like`; a view if it can be."""
    if value.stride() != like.stride():
        value = torch.empty_like(like, dtype=value.dtype).copy_(value)
    return torch.as_strided(value, (value.numel(),), (1,))


def _joined(state: dict[str, torch.Tensor], part: _Part, key: str) -> torch.Tensor:
    """[start, start + size) of a tensor's state from pieces that were cut anywhere."""
    prefix = f"{part.number}.{key}."
    result = None
    for name, piece in state.items():
        if name.startswith(prefix):
            start = int(name[len(prefix) :])
            low, high = max(start, part.start), min(start + len(piece), part.start + part.size)
            if low < high:
                if result is None:
                    result = torch.zeros(part.size, dtype=piece.dtype)
                result[low - part.start : high - part.start] = piece[low - start : high - start]
    if result is None:
        raise UsageError(f"the optimizer's state has nothing for parameter {part.number}, {key}")
    return result


def to_torch(state: dict[str, torch.Tensor], description: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """The pieces of all servers as the state_dict of torch's own optimizer over the layout's tensors."""
    order = [number for group in description["groups"] for number in group["params"]]
    held: dict[int, dict[str, Any]] = {}
    for name, value in state.items():
        number, key, *start = name.split(".")
        if number == "group":
            continue
        slot = held.setdefault(order.index(int(number)), {})
        if not start:
            slot[key] = value
            continue
        if key not in slot:
            like = torch.empty(layout.sizes[int(number)], dtype=value.dtype)
            slot[key] = torch.as_strided(like, layout.shapes[int(number)], layout.strides[int(number)])
        flat = torch.as_strided(slot[key], (layout.sizes[int(number)],), (1,))
        flat[int(start[0]) : int(start[0]) + len(value)] = value
    groups, low = [], 0
    for number, group in enumerate(description["groups"]):
        own = {
            name.split(".")[2]: _from_tensor(value)
            for name, value in state.items()
            if name.startswith(f"group.{number}.")
        }
        groups.append({**group, **own, "params": list(range(low, low + len(group["params"])))})
        low += len(group["params"])
    return {"state": dict(sorted(held.items())), "param_groups": groups}


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.ndim == 0
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _as_tensor(value: Any) -> torch.Tensor:
    """A number of a group as a tensor: float64 where it is none already."""
    return value.clone() if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)


def _from_tensor(value: torch.Tensor) -> Any:
    if value.dtype != torch.float64:
        return value.clone()
    number = value.item()
    return int(number) if number == int(number) else number


def from_torch(state: dict[str, Any], description: dict[str, Any], layout: Layout) -> dict[str, torch.Tensor]:
    """The other way round: torch's `state` in the terms of `Updater.load`."""
    order = [number for group in description["groups"] for number in group["params"]]
    found: dict[str, torch.Tensor] = {}
    for position, held in state["state"].items():
        number = order[int(position)]
        like = torch.empty_strided(layout.shapes[number], layout.strides[number], device="meta")
        for key, value in held.items():
            if value is None:
                continue
            value = torch.as_tensor(value)
            if tuple(value.shape) == layout.shapes[number]:
                flat = torch.empty_strided(like.shape, like.stride(), dtype=value.dtype).copy_(value)
                found[f"{number}.{key}.0"] = torch.as_strided(flat, (value.numel(),), (1,))
            else:
                found[f"{number}.{key}"] = value
    for number, (group, told) in enumerate(zip(state["param_groups"], description["groups"], strict=True)):
        for key, value in group.items():
            if key not in ("params", "lr") and _is_number(value) and value != told.get(key):
                found[f"group.{number}.{key}"] = _as_tensor(value)
    return found
