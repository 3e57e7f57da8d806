"""Teacher: the trained model that a distillation learns from, and how it is known again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from shoal import models
from shoal.base.errors import ShoalError, UsageError, first_line, shown_path
from shoal.recipe.recipe import Recipe
from shoal.step.gang import Gang
from shoal.step.tasks.distill import Teacher

if TYPE_CHECKING:
    from shoal.train.setup import Data


@dataclass(frozen=True)
class Known:
    """A teacher as checkpoints and reports name it."""

    name: str
    """Its model."""
    where: str
    """What its weights were read from."""
    weights: str
    """SHA-256, in hex, of its weights and of how it sees pixels."""

    def told(self) -> dict[str, str]:
        return {"name": self.name, "from": self.where, "weights": self.weights}


def check_teacher(saved: dict[str, Any], known: Known | None, where: Path) -> None:
    """UsageError where the student of one teacher is to go on with another; saved: a checkpoint's manifest."""
    was = saved.get("teacher")
    if was is not None and known is not None and was["weights"] != known.weights:
        raise UsageError(
            f"task.teacher: {where} learnt from {was['name']} of {was['from']} (weights {was['weights'][:12]}), "
            f"this is {known.name} of {known.where} (weights {known.weights[:12]}); another teacher makes another "
            "training: bring back the old one, or choose another --run folder"
        )


class Loaded(NamedTuple):
    """A teacher on the CPU."""

    model: torch.nn.Module
    mean: tuple[float, ...]
    """Of the images that it learnt from, per channel, 0 to 255."""
    std: tuple[float, ...]
    known: Known


def load(teacher: Teacher, recipe: Recipe, data: Data, gang: Gang) -> Loaded:
    """A collective. UsageError: it is not there, or does not fit the data; ShoalError: weights that cannot be read."""
    model, mean, std, name, where = _of_run(Path(teacher.run), data) if teacher.run else _by_name(teacher, data)
    _try(model, recipe, data)
    digest = hashlib.sha256(repr((mean, std)).encode())
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(f"{key} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    known = Known(name, where, digest.hexdigest())
    _check_same(known, gang)
    return Loaded(model, mean, std, known)


_Found = tuple[torch.nn.Module, tuple[float, ...], tuple[float, ...], str, str]
"""Model, mean, standard deviation, name, what it was read from."""


def _of_run(path: Path, data: Data) -> _Found:
    from shoal.train.restored import Restored  # which needs setup, which needs this

    try:
        restored = Restored(path, device=torch.device("cpu"))
    except ShoalError as error:
        raise type(error)(f"task.teacher.run: {error}") from None
    manifest, classes = restored.manifest, data.train.classes
    theirs = tuple(manifest["classes"])
    if manifest["outputs"] != data.classes:
        raise UsageError(
            f"task.teacher.run: {restored.path} tells {manifest['outputs']} classes apart, the data has {data.classes}"
        )
    if theirs != tuple(classes):
        at = next((n for n, (a, b) in enumerate(zip(theirs, classes, strict=False)) if a != b), None)
        differ = (
            f"class {at} is '{theirs[at]}' there and '{classes[at]}' here" if at is not None else "some have no name"
        )
        raise UsageError(f"task.teacher.run: {restored.path} has other classes than the data: {differ}")
    mean, std = tuple(manifest["mean"]), tuple(manifest["std"])
    return restored.model, mean, std, restored.recipe.model.name, shown_path(restored.path)


def _by_name(teacher: Teacher, data: Data) -> _Found:
    from shoal.models.weights import load_pretrained

    name = teacher.model or ""
    file = Path(teacher.pretrained) if isinstance(teacher.pretrained, str) else None
    if file is not None and not file.is_file():
        raise UsageError(f"task.teacher.pretrained: no file {shown_path(file)}")
    options = models.Model(name=name, pretrained=file is None, options=teacher.options)
    try:
        model: Any = models.create(options, classes=data.classes, channels=data.train.shape[0], seed=0).module
    except ShoalError as error:
        raise type(error)(f"task.teacher: {error}") from None
    if file is not None:
        if other := load_pretrained(model, file, "task.teacher.pretrained"):
            raise UsageError(
                f"task.teacher: other classes than the data's {data.classes}: {other[0].partition(': ')[2]}"
            )
        return model, data.train.mean, data.train.std, name, shown_path(file)
    published = model.pretrained_cfg
    if (told := published.get("num_classes")) != data.classes:
        raise UsageError(f"task.teacher: timm's {name} tells {told} classes apart, the data has {data.classes}")
    mean, std = (tuple(255 * value for value in published[key]) for key in ("mean", "std"))
    if len(mean) != data.train.shape[0]:
        raise UsageError(f"task.teacher: timm's {name} sees {len(mean)} channels, the data has {data.train.shape[0]}")
    return model, mean, std, name, f"timm's {published.get('tag') or 'weights'}"


def _try(model: torch.nn.Module, recipe: Recipe, data: Data) -> None:
    """Shows the teacher one blank image of the student's size."""
    source: Any = recipe.data
    shape = (data.train.shape[0], *source.augment.seen(*data.train.shape[1:]))
    try:
        with torch.inference_mode():
            logits = model.eval()(torch.zeros(1, *shape, dtype=next(model.parameters()).dtype))
    except Exception as error:
        sizes = " x ".join(map(str, shape))
        raise UsageError(f"task.teacher: it does not take images of {sizes} ({first_line(error)})") from error
    if tuple(logits.shape) != (1, data.classes):
        raise UsageError(f"task.teacher: it gives {list(logits.shape)}, not one logit per class [1, {data.classes}]")


def _check_same(known: Known, gang: Gang) -> None:
    """Every worker reads the teacher itself, and its host may hold another one."""
    first = gang.broadcast_bytes(known.weights.encode() if gang.leads else None).decode()
    if first != known.weights:
        raise ShoalError(
            f"task.teacher: {known.where} holds other weights on this host ({known.weights[:12]}) than on the first "
            f"worker's ({first[:12]})"
        )
