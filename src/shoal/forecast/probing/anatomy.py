"""Anatomy: how large a recipe's model is, and in which order its gradients come."""

from __future__ import annotations

import contextlib
import math
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
    return msgspec.structs.replace(
        _counted(recipe, model),
        images_per_epoch=images,
        val_images=val_images,
        gradients=readiness(model, both),
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


def readiness(model: torch.nn.Module, both: Callable[[], object]) -> list[tuple[int, float]]:
    """(bytes, when as a share of the time) of each gradient, in the order in which `both`, a forward and a backward
    pass, makes them."""
    seen: list[tuple[int, float]] = []

    def note(parameter: torch.Tensor) -> None:
        seen.append((parameter.numel() * parameter.element_size(), time.perf_counter()))

    hooks = [p.register_post_accumulate_grad_hook(note) for p in model.parameters() if p.requires_grad]
    began = time.perf_counter()
    both()
    took = time.perf_counter() - began
    for hook in hooks:
        hook.remove()
    return [(nbytes, min(1.0, (when - began) / took)) for nbytes, when in seen]


def layers(model: torch.nn.Module, inputs: torch.Tensor) -> list[tuple[float, float]]:
    """(share of the time of both passes, bytes of one image's activations behind it) between the places where a
    pipeline can be cut. inputs: as the model takes them."""
    found = examine(model, inputs, contextlib.nullcontext, torch.nn.Module.train)
    seconds = [*(boundary.seconds for boundary in found.boundaries), found.rest_s]
    wide = [math.prod(boundary.shape) * boundary.dtype.itemsize for boundary in found.boundaries]
    return [(piece / sum(seconds), float(nbytes)) for piece, nbytes in zip(seconds, [*wide, 0], strict=True)]
