"""Export: a checkpoint's model in a format of other programs, compared with the model before the file has its name."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shoal import __version__
from shoal.base.errors import ShoalError, UsageError, shown_path
from shoal.base.files import files_whole
from shoal.data.batches import Batch, eval_chunks
from shoal.step.inputs import Inputs
from shoal.train.evaluate import Score
from shoal.train.restored import Restored

_CHECKED = 64
"""Images that both the file and the model look at."""
_CLOSE = 1e-3
"""Difference of logits, in units of the largest, that is still rounding."""


class Graph(torch.nn.Module):
    """Pixels, uint8 [B, C, h, w] -> logits, float32 [B, classes]: on the CPU, in the plain memory layout."""

    def __init__(self, restored: Restored) -> None:
        super().__init__()
        manifest, device = restored.manifest, torch.device("cpu")
        self.inputs = Inputs(manifest["mean"], manifest["std"], torch.float32, device)
        self.model = restored.model.to(device=device, dtype=torch.float32, memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.eval()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(self.inputs(images))


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how near it comes to the model."""

    path: Path
    shape: tuple[int, int, int]
    """Channels, height, width of its images."""
    classes: int
    difference: float
    """Largest, of any logit."""
    images: str
    """On which images it was found."""
    scores: tuple[Score, Score] | None = None
    """Of the model and of the quantised file, on the validation images."""


def export(restored: Restored, to: str, path: Path, *, int8: bool = False) -> Exported:
    """Writes `path`, wholly or not at all; an older file is replaced.

    to: onnx, torch-export or safetensors. int8 (onnx): dynamic quantisation. ShoalError: a model that cannot be
    written so, or a file that computes something else than the model.
    """
    form = importlib.import_module(f"shoal.inference.formats.{to.replace('-', '_')}")
    shape = _shape(restored)
    graph = Graph(restored)
    images, told = _images(restored, shape, needed=int8)
    example = torch.zeros(2, *shape, dtype=torch.uint8)
    try:
        with files_whole(path) as aside:
            file = aside / path.name
            form.write(graph, example, file, metadata(restored, shape, inside=to != "safetensors"))
            difference = _difference(graph, form.reader(graph, file), images)
            scores = None
            if int8:
                form.quantise(file)
                reader = form.reader(graph, file)
                difference = _difference(graph, reader, images, limit=None)
                scores = (restored.evaluate(logits_of=_on(graph)), restored.evaluate(logits_of=_on(reader)))
    except OSError as error:
        raise ShoalError(f"{shown_path(path)}: cannot be written ({error.strerror or error})") from None
    return Exported(path, shape, len(restored.classes), difference, told, scores)


def metadata(restored: Restored, shape: tuple[int, int, int], *, inside: bool) -> dict[str, str]:
    """What a program must know to feed the model and to name its outputs; JSON but for plain words.

    inside: whether (pixel - mean) / std is part of the graph.
    """
    source: Any = restored.recipe.data
    channels, height, width = shape
    steps: list[dict[str, Any]] = []
    if side := getattr(source, "image_size", None):
        steps += [{"resize_shorter_side": side}, {"centre_crop": [side, side]}]
    if source.augment.size:
        steps.append({"resize_shorter_side": source.augment.shorter})
    if source.augment.size or source.augment.crop:
        steps.append({"centre_crop": [height, width]})
    preprocessing = {
        "colours": "RGB" if channels == 3 else "grey" if channels == 1 else f"{channels} channels",
        "interpolation": "bilinear, antialiased",
        "steps": steps,
        "mean": restored.manifest["mean"],
        "std": restored.manifest["std"],
        "normalised_inside": inside,
    }
    return {
        "producer": f"shoal {__version__}",
        "recipe": restored.manifest["name"],
        "model": restored.recipe.model.name,
        "step": str(restored.manifest["step"]),
        "weights": "moving average" if restored.averaged else "as trained",
        "input": f"images: {'uint8' if inside else 'float32'} [batch, {channels}, {height}, {width}]",
        "output": f"logits: float32 [batch, {len(restored.classes)}]",
        "preprocessing": json.dumps(preprocessing),
        "classes": json.dumps(restored.classes, ensure_ascii=False),
    }


def _shape(restored: Restored) -> tuple[int, int, int]:
    channels, *plane = restored.manifest["shape"]
    height, width = restored.recipe.data.augment.seen(*plane)  # type: ignore[attr-defined]
    if not height:
        raise UsageError(f"{restored.path}: its recipe says no size that images are brought to")
    return channels, height, width


def _images(restored: Restored, shape: tuple[int, int, int], *, needed: bool) -> tuple[torch.Tensor, str]:
    """uint8 [n, C, h, w] to compare on: validation images, or noise where there are none and none are `needed`."""
    source: Any = restored.recipe.data
    try:
        chunks = eval_chunks(restored.validation(), source.augment, _CHECKED)
        images = next(batch.images for _, batch in chunks)
        return images, f"{len(images)} validation images"
    except ShoalError:
        if needed:
            raise
    return torch.randint(0, 256, (_CHECKED, *shape), dtype=torch.uint8), f"{_CHECKED} images of noise"


@torch.inference_mode()
def _difference(
    graph: Callable[[torch.Tensor], torch.Tensor],
    other: Callable[[torch.Tensor], torch.Tensor],
    images: torch.Tensor,
    limit: float | None = _CLOSE,
) -> float:
    """Largest difference of logits, in batches of several sizes. ShoalError when it is more than rounding."""
    largest = scale = 0.0
    for batch in (images, images[:1], images[1:4]):
        if len(batch):
            wanted = graph(batch)
            largest = max(largest, float((other(batch) - wanted).abs().max()))
            scale = max(scale, 1.0, float(wanted.abs().max()))
    if limit is not None and not largest <= limit * scale:
        raise ShoalError(
            f"what was exported computes something else than the model: logits differ by {largest:.3g}, and the "
            f"largest is {scale:.3g}; nothing was written"
        )
    return largest


def _on(reader: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Batch], torch.Tensor]:
    @torch.inference_mode()
    def logits_of(batch: Batch) -> torch.Tensor:
        return reader(batch.images)

    return logits_of
