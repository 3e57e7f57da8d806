"""Loop: the recipe's own step on one worker that exchanges nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from shoal.data.batches import eval_chunks
from shoal.recipe.recipe import Recipe
from shoal.step.gang import Alone, Group
from shoal.step.meters import Meters
from shoal.strategies.ddp import Ddp
from shoal.strategies.single import Single
from shoal.train.checkpoint import save
from shoal.train.setup import Data, Setup


class Loop:
    """With one shard of so many images."""

    def __init__(
        self, recipe: Recipe, data: Data, images: int, device: torch.device, *, bucketing: bool = False
    ) -> None:
        """bucketing: gradients go through DistributedDataParallel as if there were others."""
        lone: Any = dist.new_group([dist.get_rank()], use_local_synchronization=True) if bucketing else None
        gang = Group(device, lone) if bucketing else Alone(device)
        one = msgspec.structs.replace(
            recipe,
            batch=images,
            batch_per_worker=None,
            shards=1,
            accumulate=1,
            strategy=Ddp() if bucketing else Single(),
            drop_last=True,
        )
        self.images, self.recipe, self.data, self.device = images, one, data, device
        self._setup = setup = Setup.of(one, gang, data, pretrained=False)
        self.rig = setup.rig
        self.meters = Meters(1, Alone(device))
        self._batches = setup.batches().steps(0, 1 << 40)
        self._last: Any = None

    def step(self) -> tuple[float, float]:
        """Seconds of the shard's passes, and of the rest of the step; waiting for images is neither."""
        (batch,) = next(self._batches)
        began = time.perf_counter()
        output = self.rig.forward_backward(batch, last=True)
        self._settle()
        half = time.perf_counter()
        self.rig.apply(0.0, self.images)
        self.meters.add(batch, output)
        self._settle()
        self._last = batch
        return half - began, time.perf_counter() - half

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def warm(self, budget_s: float) -> None:
        """First steps allocate, and choose kernels."""
        until = time.perf_counter() + budget_s
        self.step()
        while time.perf_counter() < until:
            self.step()

    def run(self, budget_s: float) -> list[tuple[float, float]]:
        """At least one step."""
        took: list[tuple[float, float]] = []
        until = time.perf_counter() + budget_s
        while not took or time.perf_counter() < until:
            took.append(self.step())
        return took

    def close(self) -> None:
        self._batches.close()

    def both(self) -> None:
        """The forward and the backward pass of the last batch once more; `end` is to follow."""
        self.rig.forward_backward(self._last, last=True)
        self._settle()

    def end(self) -> None:
        """The rest of the step."""
        self.rig.apply(0.0, self.images)

    def inputs(self, most: int) -> torch.Tensor:
        """Blank images of the last batch's form, as the model takes them; not more than `most`."""
        kind = next(self.rig.model.parameters()).dtype
        return torch.zeros(min(most, self.images), *self._last.images.shape[1:], dtype=kind, device=self.device)

    def load(self, budget_s: float) -> float:
        """Seconds of an image when nothing but images is made."""
        batches, step = self._setup.batches(), 0
        began = time.perf_counter()
        while (took := time.perf_counter() - began) < budget_s or not step:
            batches.prepare(step)
            step += 1
        return took / (step * self.images)

    def evaluate(self, budget_s: float) -> float:
        """Seconds of an image in validation."""
        data: Any = self.recipe.data
        chunks = eval_chunks(self.data.val, data.augment, min(data.eval_batch, 64), upload=self._setup.upload)
        done, began, took = 0, time.perf_counter(), 0.0
        for _, batch in chunks:
            self.rig.evaluate(batch)
            self._settle()
            done, took = done + len(batch.labels), time.perf_counter() - began
            if took > budget_s:
                break
        return took / max(1, done)

    def save(self, path: Path) -> float:
        """Seconds of a checkpoint, in the temporary folder."""
        state = self.rig.state_dict()
        began = time.perf_counter()
        save(path, model=state["model"], ema=state.get("ema"), state={"optimizer": state["optimizer"]}, manifest={})
        return time.perf_counter() - began
