"""Cutting: which stretch of a model each stage has, so that the slowest is as fast as can be."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

import torch
from torch import nn

from shoal.base.errors import UsageError, first_line
from shoal.strategies.divided.anatomy import Anatomy, Boundary, Call, examine
from shoal.strategies.divided.balance import balanced, sums
from shoal.strategies.divided.carving import carve, run


@dataclass(frozen=True)
class Cuts:
    """How a model is cut. The same on every worker."""

    calls: dict[str, Call]
    boundaries: tuple[Boundary, ...]
    """One less than stages."""
    seconds: tuple[float, ...]
    """Of each stage, both passes of one micro-batch."""
    loose: tuple[frozenset[str], ...]
    """For each stage, its tensors that belong to no layer of their own."""
    classes: int
    draws: bool
    """Whether the forward pass draws random numbers."""

    def carve(self, model: nn.Module, stage: int, shape: tuple[int, ...]) -> nn.Module:
        """Leaves one stage of the model, in place. shape: of the model's input, behind the images."""
        names = [None, *(boundary.name for boundary in self.boundaries), None]
        return carve(model, self.calls, names[stage], names[stage + 1], set(self.loose[stage]), shape)

    def to_bytes(self) -> bytes:
        def plain(value: object) -> object:
            return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else sorted(value)  # type: ignore[call-overload]

        return json.dumps(asdict(self), default=plain).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Cuts:
        told = json.loads(data)
        calls = {name: Call(**_typed(held)) for name, held in told["calls"].items()}
        boundaries = tuple(Boundary(**_typed(held)) for held in told["boundaries"])
        loose = tuple(frozenset(names) for names in told["loose"])
        return Cuts(calls, boundaries, tuple(told["seconds"]), loose, told["classes"], told["draws"])


def _typed(held: dict) -> dict:
    shape = held["shape"]
    upstream = {"upstream": frozenset(held["upstream"])} if "upstream" in held else {}
    return {
        **held,
        "shape": None if shape is None else tuple(shape),
        "dtype": getattr(torch, held["dtype"]),
        **upstream,
    }


def cut(
    model: nn.Module,
    stages: int,
    inputs: torch.Tensor,
    context: Callable[[], AbstractContextManager],
    train: Callable[[nn.Module], object],
) -> Cuts:
    """Measures the model and cuts it; every cut is tried before it is used. UsageError: it cannot be cut so often.

    inputs: as the model takes them, of a micro-batch. context: what forward passes run in. train: sets a training's
    mode.
    """
    model = copy.deepcopy(model)
    anatomy = examine(model, inputs, context, train)
    model.eval()
    few = inputs[:2]
    with torch.no_grad(), context():
        expected = model(few)
    calls, refused = anatomy.calls, dict[str, str]()
    while True:
        chosen = balanced(_pieces(anatomy), stages, _weighty(model, anatomy))
        if chosen is None:
            raise UsageError(_too_few(model, stages, len(anatomy.boundaries), refused))
        cuts = Cuts(
            calls,
            tuple(anatomy.boundaries[number] for number in chosen),
            tuple(sums(_pieces(anatomy), chosen)),
            _owners(model, [anatomy.boundaries[number] for number in chosen]),
            expected.shape[1],
            anatomy.draws,
        )
        wrong = _tried(model, cuts, few, context, expected)
        if wrong is None:
            return cuts
        stage, reason = wrong
        # What fails at a stage is what goes past the boundary it begins with; the first has none but that it ends at.
        number = chosen[max(stage - 1, 0)]
        refused[anatomy.boundaries[number].name] = reason
        _merge(anatomy, number)


def _too_few(model: nn.Module, stages: int, there: int, refused: dict[str, str]) -> str:
    told = f"{type(model).__name__} cannot be cut into {stages} stages"
    if refused:
        name, reason = next(reversed(refused.items()))
        return f"strategy pipeline: {told}: not before {name} ({reason}); use fewer stages, or strategy=fsdp"
    layers = [name for name, module in model.named_modules() if name and not any(True for _ in module.children())]
    told += f": between {layers[0]} and {layers[-1]} it has {there} places to cut, and each stage needs weights"
    return f"strategy pipeline: {told}; use fewer stages, or strategy=fsdp"


def _tried(
    model: nn.Module,
    cuts: Cuts,
    inputs: torch.Tensor,
    context: Callable[[], AbstractContextManager],
    expected: torch.Tensor,
) -> tuple[int, str] | None:
    """The stage that fails, and why; None where the stages one after another do what the whole does."""
    x = inputs
    for stage in range(len(cuts.boundaries) + 1):
        part = cuts.carve(copy.deepcopy(model), stage, tuple(inputs.shape[1:]))
        try:
            with torch.no_grad(), context():
                x = run(part, x.clone())
            if not isinstance(x, torch.Tensor) or x.device.type == "meta":
                return stage, "what goes past it is needed behind it"
        except Exception as error:
            return stage, f"what goes past it is needed behind it: {first_line(error)}"
    return None if torch.equal(x, expected) else (len(cuts.boundaries), "the parts compute something else")


def _merge(anatomy: Anatomy, number: int) -> None:
    """Forgets a boundary; its time belongs to the next one's."""
    seconds = anatomy.boundaries.pop(number).seconds
    if number < len(anatomy.boundaries):
        anatomy.boundaries[number].seconds += seconds
    else:
        anatomy.rest_s += seconds


def _pieces(anatomy: Anatomy) -> list[float]:
    """Seconds of what lies between the boundaries."""
    return [*(boundary.seconds for boundary in anatomy.boundaries), anatomy.rest_s]


def _weighty(model: nn.Module, anatomy: Anatomy) -> list[bool]:
    """For each piece between boundaries, whether it has layers with weights to train."""
    bounds = [0, *(anatomy.calls[boundary.name].began for boundary in anatomy.boundaries), 1 << 60]
    found = [False] * (len(bounds) - 1)
    for name, module in model.named_modules():
        if name in anatomy.calls and any(held.requires_grad for held in module.parameters(recurse=False)):
            began = anatomy.calls[name].began
            found[sum(bound <= began for bound in bounds[1:])] = True
    return found


def _owners(model: nn.Module, boundaries: list[Boundary]) -> tuple[frozenset[str], ...]:
    """For each stage the tensors of modules with others below: parameters where they are used, buffers at the first."""
    owned: list[set[str]] = [set() for _ in range(len(boundaries) + 1)]
    for name, _ in model.named_parameters():
        owned[sum(name not in boundary.upstream for boundary in boundaries)].add(name)
    owned[0] |= {name for name, _ in model.named_buffers()}
    return tuple(frozenset(names) for names in owned)
