"""Anatomy: where a model can be cut into stages, and how long what lies between takes. Found by running it."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import nn

_ROUNDS = 3
"""Timed passes, after one to warm up."""


@dataclass
class Call:
    """One module's call in a forward pass."""

    name: str
    began: int
    ended: int
    """Places in the order of beginnings and endings."""
    shape: tuple[int, ...] | None = None
    """Of the output behind the images; None where it is no single tensor with a row per image."""
    dtype: torch.dtype = torch.float32


@dataclass
class Boundary:
    """A module before which the model may be cut, by what goes in there."""

    name: str
    shape: tuple[int, ...]
    """Behind the images."""
    dtype: torch.dtype
    channels_last: bool
    seconds: float = 0.0
    """Of both passes, from the boundary before to this one."""
    upstream: frozenset[str] = frozenset()
    """Tensors that belong to no layer of their own (a position embedding, say) and are used before it."""


@dataclass
class Anatomy:
    """Of one model, for batches of one size."""

    calls: dict[str, Call] = field(default_factory=dict)
    boundaries: list[Boundary] = field(default_factory=list)
    rest_s: float = 0.0
    """Seconds from the last boundary to the end."""
    draws: bool = False
    """Whether the forward pass draws random numbers."""


def examine(
    model: nn.Module,
    inputs: torch.Tensor,
    context: Callable[[], AbstractContextManager],
    train: Callable[[nn.Module], object],
) -> Anatomy:
    """inputs: as the model takes them. context: what the forward pass runs in. train: sets the mode of a training."""
    model = copy.deepcopy(model)
    train(model)
    anatomy = Anatomy()
    loose = {name: held for name, held in model.named_parameters() if _is_loose(model, name)}
    marks = torch.random.get_rng_state() if inputs.device.type == "cpu" else torch.cuda.get_rng_state(inputs.device)
    with torch.random.fork_rng(devices=[inputs.device] if inputs.device.type == "cuda" else []):
        _watch_calls(model, inputs, context, anatomy)
        now = torch.random.get_rng_state() if inputs.device.type == "cpu" else torch.cuda.get_rng_state(inputs.device)
        anatomy.draws = not torch.equal(marks, now)
        rounds = [_timed(model, inputs, context, anatomy, loose) for _ in range(1 + _ROUNDS)][1:]
    for number, boundary in enumerate(anatomy.boundaries):
        boundary.seconds = statistics.median(times[number] for times in rounds)
    anatomy.rest_s = statistics.median(times[-1] for times in rounds)
    return anatomy


def _is_loose(model: nn.Module, name: str) -> bool:
    """Whether a parameter belongs to a module that has others below it."""
    return any(True for _ in model.get_submodule(name.rpartition(".")[0]).children())


def _candidates(model: nn.Module) -> set[str]:
    """Children of the model itself, and of the sequences and lists in it."""
    found = {name for name, _ in model.named_children()}
    for name, module in model.named_modules():
        if isinstance(module, (nn.Sequential, nn.ModuleList)):
            found |= {f"{name}.{key}".removeprefix(".") for key, _ in module.named_children()}
    return found


def _watch_calls(
    model: nn.Module, inputs: torch.Tensor, context: Callable[[], AbstractContextManager], anatomy: Anatomy
) -> None:
    """Which modules are called in what order, and what they take and give."""
    images, order, often = len(inputs), [0], dict[str, int]()
    wanted, seen = _candidates(model), set[int]()
    kept: list[torch.Tensor] = []

    def begin(name: str) -> Callable:
        def hook(module: nn.Module, args: tuple) -> None:
            order[0] += 1
            often[name] = often.get(name, 0) + 1
            anatomy.calls.setdefault(name, Call(name, order[0], order[0]))
            if name in wanted and len(args) == 1 and isinstance(args[0], torch.Tensor):
                given = args[0]
                # Several modules may begin with one tensor: the outermost speaks for them.
                if given.requires_grad and given.ndim and len(given) == images and id(given) not in seen:
                    kept.append(given)  # so that its id stays its own
                    seen.add(id(given))
                    last = given.ndim == 4 and not given.is_contiguous()
                    anatomy.boundaries.append(Boundary(name, tuple(given.shape[1:]), given.dtype, last))

        return hook

    def end(name: str) -> Callable:
        def hook(module: nn.Module, args: tuple, output: object) -> None:
            order[0] += 1
            call = anatomy.calls[name]
            call.ended = order[0]
            if isinstance(output, torch.Tensor) and output.ndim and len(output) == images:
                call.shape, call.dtype = tuple(output.shape[1:]), output.dtype

        return hook

    handles = [
        handle
        for name, module in model.named_modules()
        if name
        for handle in (module.register_forward_pre_hook(begin(name)), module.register_forward_hook(end(name)))
    ]
    with context():
        model(inputs)
    for handle in handles:
        handle.remove()
    anatomy.boundaries = [boundary for boundary in anatomy.boundaries if often[boundary.name] == 1]


def _timed(
    model: nn.Module,
    inputs: torch.Tensor,
    context: Callable[[], AbstractContextManager],
    anatomy: Anatomy,
    loose: dict[str, nn.Parameter],
) -> list[float]:
    """Seconds of both passes up to each boundary, and from the last one on."""
    there, back, held = dict[str, float](), dict[str, float](), dict[str, torch.Tensor]()

    def now() -> float:
        if inputs.device.type == "cuda":
            torch.cuda.synchronize(inputs.device)
        return time.perf_counter()

    def reached(name: str) -> Callable:
        def hook(module: nn.Module, args: tuple) -> None:
            there[name] = now()
            held[name] = args[0]
            args[0].register_hook(lambda grad: back.__setitem__(name, now()))

        return hook

    handles = [
        model.get_submodule(each.name).register_forward_pre_hook(reached(each.name)) for each in anatomy.boundaries
    ]
    model.zero_grad(set_to_none=True)
    start = now()
    with context():
        total = model(inputs).float().square().mean()
    turned = now()
    for boundary in anatomy.boundaries if loose else ():
        used = torch.autograd.grad(
            held[boundary.name].float().sum(), [*loose.values()], retain_graph=True, allow_unused=True
        )
        boundary.upstream = frozenset(name for name, grad in zip(loose, used, strict=True) if grad is not None)
    back.clear()
    began_back = now()
    total.backward()
    end = now()
    for handle in handles:
        handle.remove()
    anatomy.boundaries = [each for each in anatomy.boundaries if each.name in back]
    names = [each.name for each in anatomy.boundaries]
    forward = [start, *(there[name] for name in names), turned]
    backward = [end, *(back[name] for name in names), began_back]
    return [
        forward[number + 1] - forward[number] + backward[number] - backward[number + 1]
        for number in range(len(names) + 1)
    ]
