"""Anatomy: how large a recipe's model is, and in which order its gradients come."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable

import msgspec
import torch

from shoal.base.errors import ShoalError
from shoal.forecast.calibration import Calibration
from shoal.recipe.recipe import Recipe
from shoal.strategies.divided.anatomy import examine
from shoal.strategies.divided.units import units
from shoal.train.setup import Data, make_model, open_data


def size(recipe: Recipe, data: Data) -> Calibration:
    """What is known without computing: how large the model and the data are."""
    model = make_model(recipe, data.classes, data.train.shape[0], pretrained=False).module
    counted = _counted(recipe, model)
    return msgspec.structs.replace(counted, images_per_epoch=len(data.train.labels), val_images=len(data.val.labels))


def bare(recipe: Recipe) -> Calibration:
    """The same, whether or not the data is here, with the order of a step's events as two blank images show it: shares
    of time, which hold on other devices too, as far as anything does that was measured on this one."""
    classes, channels, side = recipe.model.classes or 1000, 3, 224
    images = val_images = 0
    with contextlib.suppress(ShoalError):
        data = open_data(recipe)
        side = max(recipe.data.augment.seen(*data.train.shape[1:]))  # type: ignore[attr-defined]
        classes, channels = data.classes, data.train.shape[0]
        images, val_images = len(data.train.labels), len(data.val.labels)
    model = make_model(recipe, classes, channels, pretrained=False).module
    blank = torch.zeros(2, channels, side, side)

    def both() -> None:
        model(blank).sum().backward()

    both()
    gradients, forward = readiness(model, both)
    return msgspec.structs.replace(
        _counted(recipe, model),
        images_per_epoch=images,
        val_images=val_images,
        gradients=gradients,
        forward=forward,
        layers=layers(model, blank),
    )


def _counted(recipe: Recipe, model: torch.nn.Module) -> Calibration:
    wide = recipe.precision.dtype().itemsize  # type: ignore[attr-defined]
    numbers = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return Calibration(
        source="",
        images_per_epoch=0,
        parameters=numbers,
        gradient_bytes=numbers * wide,
        blocks=len(units(model)) + 1,
        side_bytes=8 * sum(buffer.numel() for buffer in model.buffers()),
        image_s=0.0,
    )


def readiness(
    model: torch.nn.Module, both: Callable[[], object], *, then: Callable[[], object] = lambda: None, passes: int = 5
) -> tuple[list[tuple[int, float]], float]:
    """((bytes, when) of each gradient, in the order in which `both`, a forward and a backward pass, makes them; when
    the forward pass is done), as shares of the time of `both`: medians of so many passes.

    then: what is to be done after each pass, in nobody's time.
    """
    seen: list[tuple[torch.Tensor, float]] = []
    forwards: list[float] = []
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hooks = [p.register_post_accumulate_grad_hook(lambda p: seen.append((p, time.perf_counter()))) for p in parameters]
    hooks.append(model.register_forward_hook(lambda *_: forwards.append(time.perf_counter())))
    shares: dict[torch.Tensor, list[float]] = {}
    done = []
    for _ in range(passes):
        seen.clear()
        forwards.clear()
        began = time.perf_counter()
        both()
        took = time.perf_counter() - began
        for parameter, when in seen:
            shares.setdefault(parameter, []).append((when - began) / took)
        done += [(when - began) / took for when in forwards[-1:]]  # a compiled model may tell of none
        then()
    for hook in hooks:
        hook.remove()
    told = [(p.numel() * p.element_size(), min(1.0, statistics.median(when))) for p, when in shares.items()]
    return sorted(told, key=lambda gradient: gradient[1]), statistics.median(done) if done else 1 / 3


def layers(model: torch.nn.Module, inputs: torch.Tensor) -> list[tuple[float, float]]:
    """(share of the time of both passes, bytes of one image's activations behind it) between the places where a
    pipeline can be cut. inputs: as the model takes them."""
    found = examine(model, inputs, contextlib.nullcontext, torch.nn.Module.train)
    seconds = [*(boundary.seconds for boundary in found.boundaries), found.rest_s]
    wide = [math.prod(boundary.shape) * boundary.dtype.itemsize for boundary in found.boundaries]
    return [(piece / sum(seconds), float(nbytes)) for piece, nbytes in zip(seconds, [*wide, 0], strict=True)]
