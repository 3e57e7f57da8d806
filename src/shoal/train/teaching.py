"""Teaching: a recipe's task with its teacher at hand, asked at every batch or beforehand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.base.errors import ShoalError, UsageError, shown_path
from shoal.base.files import write_whole
from shoal.data.batches import Batch, eval_chunks
from shoal.data.fingerprint import fingerprint
from shoal.data.order import chunk_bounds
from shoal.data.soft_labels import SoftLabels
from shoal.recipe.recipe import Recipe
from shoal.step.distilling import Asked, Said, Taught
from shoal.step.gang import Gang
from shoal.step.task import Task
from shoal.step.tasks.distill import Distill
from shoal.train import teacher
from shoal.train.teacher import Known

if TYPE_CHECKING:
    from shoal.train.setup import Data


def taught(
    recipe: Recipe, data: Data, gang: Gang, beat: Callable[[], None] = lambda: None
) -> tuple[Task, Known | None]:
    """The recipe's task, with its teacher at hand where it has one. A collective.

    beat: called now and then while soft labels are made. UsageError: a teacher that does not fit the data, soft labels
    of others; ShoalError: weights that cannot be read.
    """
    task: Any = recipe.task
    if not isinstance(task, Distill):
        return task, None
    model, mean, std, known = teacher.load(task.teacher, recipe, data, gang)
    exact = recipe.precision.dtype() == torch.float64  # type: ignore[attr-defined]
    asked = Asked(
        model,
        mean,
        std,
        task.softness,
        dtype=torch.float64 if exact else torch.float32,
        layout=torch.channels_last if recipe.model.channels_last else torch.contiguous_format,
    )
    if task.cache is None:
        return Taught.by(task, asked), known
    return Taught.by(task, Kept(_soft_labels(task, asked, known, recipe, data, gang, beat))), known


class Kept:
    """A teacher that was asked beforehand."""

    def __init__(self, held: SoftLabels) -> None:
        self._held = held

    def __call__(self, batch: Batch) -> Said:
        rows, device = batch.indices.numpy(), batch.images.device
        chosen = torch.from_numpy(self._held.classes[rows].astype(np.int64))
        logs = np.concatenate([self._held.logs[rows], self._held.others[rows]], 1)
        # What half precision rounded away is shared out: probabilities sum to 1.
        return Said(torch.from_numpy(logs).float().log_softmax(1).to(device), chosen.to(device))


def _soft_labels(
    task: Distill, asked: Asked, known: Known, recipe: Recipe, data: Data, gang: Gang, beat: Callable[[], None]
) -> SoftLabels:
    """The first worker's file at every worker, or made by all."""
    source: Any = recipe.data
    if (random := source.augment.random(*data.train.shape[1:])) is not None:
        raise UsageError(
            f"task.cache: data.augment.{random} has images look otherwise in every epoch, and the teacher was asked "
            f"once; leave {random} out, or leave task.cache out: then it looks at every batch"
        )
    path = Path(task.cache or "")
    kept = min(task.top_k, data.classes)
    bound_to = {
        "data": fingerprint(data.train), "teacher": known.weights, "temperature": task.softness, "top_k": kept
    }  # fmt: skip
    where = shown_path(path)
    found = gang.broadcast_bytes(_bytes(path) if gang.leads else None)
    if found:
        return SoftLabels.read(found, where, bound_to)
    made = _ask_all(asked, kept, recipe, data, gang, beat)
    held = made.to_bytes(bound_to)
    if gang.leads:
        try:
            write_whole(path, held)
        except OSError as error:
            raise ShoalError(f"task.cache: {where} cannot be written ({error.strerror})") from None
    return made


def _bytes(path: Path) -> bytes:
    """Of a file that need not be there. ShoalError: empty, or not to be read."""
    try:
        held = path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ShoalError(f"task.cache: {shown_path(path)} cannot be read ({error.strerror})") from None
    if not held:
        raise ShoalError(f"task.cache: {shown_path(path)} is empty; remove it to have it made anew")
    return held


def _ask_all(asked: Asked, kept: int, recipe: Recipe, data: Data, gang: Gang, beat: Callable[[], None]) -> SoftLabels:
    """Workers take whole chunks; adding the others' zeros rounds nothing."""
    source: Any = recipe.data
    count, others = len(data.train.labels), kept < data.classes
    replica, num_replicas = gang.place
    rows = torch.zeros(count, 2 * kept + others, dtype=torch.float32)
    chunks = eval_chunks(
        data.train, source.augment, source.eval_batch, replica=replica, num_replicas=num_replicas,
        threads=source.threads,
    )  # fmt: skip
    for chunk, batch in chunks if gang.speaks else ():
        beat()
        said = asked(batch.to(gang.device))
        mine = SoftLabels.of(said.logs.cpu().numpy(), kept)
        low, high = chunk_bounds(count, source.eval_batch)[chunk]
        rows[low:high] = torch.from_numpy(
            np.concatenate([part.astype(np.float32) for part in (mine.classes, mine.logs, mine.others)], 1)
        )
    rows = rows.to(gang.device)
    gang.sum(rows)
    classes, logs, rest = (part.cpu().numpy() for part in rows.split([kept, kept, int(others)], 1))
    numbers = np.uint16 if data.classes <= 1 << 16 else np.int32
    return SoftLabels(classes.astype(numbers), logs.astype(np.float16), rest.astype(np.float16))
