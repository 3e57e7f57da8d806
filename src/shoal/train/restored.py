"""Restored: a trained model back from its checkpoint, with all it needs to judge images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from shoal.base.errors import ShoalError, UsageError
from shoal.data.batches import Batch
from shoal.models.weights import check_fit
from shoal.recipe import yaml12
from shoal.recipe.load import parse
from shoal.recipe.recipe import Recipe
from shoal.step.gang import Alone
from shoal.step.inputs import Inputs
from shoal.train import checkpoint
from shoal.train.evaluate import Score, evaluate
from shoal.train.setup import make_model, open_data


class Restored:
    """The model of a checkpoint: its moving average where it has one, as validated in training."""

    def __init__(self, path: Path, overrides: Sequence[str] = (), *, raw: bool = False) -> None:
        """path: a checkpoint, or a run (its best). raw: the weights themselves where there is an average of them.

        ShoalError when the checkpoint is damaged; UsageError for overrides that the recipe does not take.
        """
        self.path = checkpoint.resolve(path)
        saved = checkpoint.read(self.path, weights_only=True)
        self.manifest: dict[str, Any] = saved.manifest
        document = yaml12.write(saved.manifest["recipe"])
        self.recipe: Recipe = parse(document, f"{self.path.name} (its recipe)", overrides).recipe
        self.averaged = saved.ema is not None and not raw
        # The thread count of the training: float sums of another number of threads may differ in the last bit.
        torch.set_num_threads(self.manifest["threads"])
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = self._build(saved.ema if self.averaged and saved.ema else saved.model)

    def _build(self, weights: dict[str, torch.Tensor]) -> torch.nn.Module:
        precision: Any = self.recipe.precision
        layout = torch.channels_last if self.recipe.model.channels_last else torch.contiguous_format
        created = make_model(self.recipe, self.manifest["outputs"], self.manifest["shape"][0], pretrained=False)
        model = created.module.to(device=self.device, dtype=precision.dtype(), memory_format=layout)  # type: ignore[call-overload]
        try:
            check_fit(model, weights)
        except ShoalError as error:
            raise ShoalError(f"{self.path}: {error}") from None
        model.load_state_dict(weights)
        self._inputs = Inputs(self.manifest["mean"], self.manifest["std"], precision.dtype(), self.device, layout)
        return model.eval()

    @torch.inference_mode()
    def logits(self, batch: Batch) -> torch.Tensor:
        """[B, classes]."""
        precision: Any = self.recipe.precision
        with precision.context(self.device):
            return self.model(self._inputs(batch.to(self.device).images))

    def evaluate(self) -> Score:
        """The recipe's validation set: the counts of the training that saved the checkpoint."""
        source: Any = self.recipe.data
        val, shape = open_data(self.recipe).val, self.manifest["shape"]
        here, there = ((held[0], *source.augment.seen(*held[1:])) for held in (val.shape, shape))
        if here != there or len(val.classes) > self.manifest["outputs"]:
            raise UsageError(
                f"data: {source.name} has images of {' x '.join(map(str, here))} in {len(val.classes)} classes, the "
                f"checkpoint was trained on {' x '.join(map(str, there))} in {self.manifest['outputs']}"
            )
        return evaluate(self.logits, val, source.augment, source.eval_batch, Alone(self.device), threads=source.threads)
