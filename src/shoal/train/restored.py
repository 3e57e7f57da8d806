"""Restored: a trained model back from its checkpoint, with all it needs to judge images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.base.errors import ShoalError, UsageError, did_you_mean
from shoal.data.batches import Batch
from shoal.data.source import Encoded, Pixels
from shoal.models.weights import check_fit
from shoal.recipe.recipe import Recipe
from shoal.recipe.saved import recipe_of
from shoal.report.predictions import Predictions
from shoal.step.gang import Alone, Gang
from shoal.step.inputs import Inputs
from shoal.train import checkpoint
from shoal.train.evaluate import Score, judge
from shoal.train.setup import make_model

Logits = Callable[[Batch], torch.Tensor]


class Restored:
    """The model of a checkpoint: its moving average where it has one, as validated in training."""

    def __init__(
        self, path: Path, overrides: Sequence[str] = (), *, raw: bool = False, device: torch.device | None = None
    ) -> None:
        """path: a checkpoint, or a run (its best). raw: the weights themselves where there is an average of them.
        device: absent: the first CUDA device, else the CPU.

        ShoalError when the checkpoint is damaged; UsageError for overrides that the recipe does not take.
        """
        saved = checkpoint.read_weights(path)
        self.path = saved.path
        self.manifest: dict[str, Any] = saved.manifest
        self.recipe: Recipe = recipe_of(saved.manifest, self.path, overrides)
        self.averaged = saved.ema is not None and not raw
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = self._build(saved.ema if self.averaged and saved.ema else saved.model)

    @property
    def classes(self) -> tuple[str, ...]:
        """A name for each of the model's outputs; its number where the training images had no class for it."""
        named: list[str] = self.manifest["classes"]
        return (*named, *(str(number) for number in range(len(named), self.manifest["outputs"])))

    def _build(self, weights: dict[str, torch.Tensor]) -> torch.nn.Module:
        precision, _ = self.precision, _ = self.recipe.precision.suited(self.device, must=False)  # type: ignore[attr-defined]
        layout = torch.channels_last if self.recipe.model.channels_last else torch.contiguous_format
        created = make_model(self.recipe, self.manifest["outputs"], self.manifest["shape"][0], pretrained=False)
        model = created.module.to(device=self.device, dtype=precision.dtype(), memory_format=layout)  # type: ignore[call-overload]
        try:
            check_fit(model, weights)
        except ShoalError as error:
            raise ShoalError(f"{self.path}: {error}") from None
        model.load_state_dict(weights)
        self.inputs = Inputs(self.manifest["mean"], self.manifest["std"], precision.dtype(), self.device, layout)
        self.net = precision.computing(model.eval())
        return model

    @torch.inference_mode()
    def logits(self, batch: Batch) -> torch.Tensor:
        """[B, classes]."""
        return self._logits(batch.to(self.device).images)

    @torch.inference_mode()
    def logits_flipped(self, batch: Batch) -> torch.Tensor:
        """[B, classes]: the logarithm of the mean probability of each image and its mirror image."""
        images = batch.to(self.device).images
        both = torch.stack([self._logits(images), self._logits(images.flip(3))])
        return both.log_softmax(2).logsumexp(0) - np.log(2)

    def _logits(self, images: torch.Tensor) -> torch.Tensor:
        with self.precision.context(self.device):
            return self.net(self.inputs(images))

    def evaluate(self, gang: Gang | None = None, *, logits_of: Logits | None = None) -> Score:
        """As `judge`, of all images together."""
        return self.judge(gang, logits_of=logits_of)[0]

    def judge(self, gang: Gang | None = None, *, logits_of: Logits | None = None) -> tuple[Score, Predictions]:
        """The recipe's validation set: the counts of the training that saved the checkpoint. A collective.

        logits_of: in the place of `logits`.
        """
        # The thread count of the training: float sums of another number of threads may differ in the last bit.
        torch.set_num_threads(self.manifest["threads"])
        source: Any = self.recipe.data
        score, predictions = judge(
            logits_of or self.logits,
            self.validation(),
            source.augment,
            source.eval_batch,
            gang or Alone(self.device),
            threads=source.threads,
        )
        return score, replace(predictions, classes=self.classes)

    def validation(self) -> Pixels | Encoded:
        """The recipe's validation images, labelled as the model counts classes. UsageError where they do not fit it."""
        source: Any = self.recipe.data
        val, shape = source.open("val"), self.manifest["shape"]
        if not len(val.labels):
            raise UsageError(f"data: {source.name} has no val images")
        source.check(val)
        here, there = ((held[0], *source.augment.seen(*held[1:])) for held in (val.shape, shape))
        if here != there:
            raise UsageError(
                f"data: {source.name} has images of {' x '.join(map(str, here))}, the checkpoint was trained on "
                f"{' x '.join(map(str, there))}"
            )
        val.labels = self._labels(val)
        return val

    def _labels(self, val: Pixels | Encoded) -> np.ndarray:
        """Labels of images whose classes may stand in another order, or be fewer, than those of the training."""
        known, found = list(self.manifest["classes"]), list(val.classes)
        numbers = all(name.isdecimal() for name in found) or all(name.isdecimal() for name in known)
        outputs = self.manifest["outputs"]
        if found == known or (numbers and not set(found) <= set(known)):  # numbers are no names: they count classes
            if (most := int(val.labels.max())) >= outputs:
                raise UsageError(f"data: label {most} of the images is none of the checkpoint's {outputs} classes")
            return val.labels
        unknown = [name for name in found if name not in known]
        if unknown:
            more = f" (nor are {len(unknown) - 1} others)" if len(unknown) > 1 else ""
            raise UsageError(
                f"data: class '{unknown[0]}' of the images is none of the checkpoint's classes{more}"
                f"{did_you_mean(unknown[0], known)}"
            )
        of_found = np.array([known.index(name) for name in found], np.int64)
        return np.where(val.labels < 0, -1, of_found[val.labels])
