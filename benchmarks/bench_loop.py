"""End-to-end training against the bare loop: forward, backward, update on a fixed batch, same process, same settings.

End to end means: order, gathering, augmentation, prefetch, normalisation, agreement, meters, log lines, metrics file
and TensorBoard, as `shoal train` has them; validation and checkpoints are outside, as they are outside images/s.
On a GPU where there is one: the bare loop then has the recipe's precision (with torch's GradScaler), memory layout and
compilation, and its batch lies on the device.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from pairs import compare, finish, machine, verdict

from shoal.base.run import Run
from shoal.recipe.load import load
from shoal.report.sinks import Sinks
from shoal.report.sinks.console import Plain
from shoal.report.sinks.jsonl import Jsonl
from shoal.report.sinks.tensorboard import TensorBoard
from shoal.step.gang import Alone
from shoal.train.allocator import keep_memory
from shoal.train.setup import Setup, make_model, manifest, open_data
from shoal.train.signals import StopSignals
from shoal.train.trainer import Trainer

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SECONDS = 5.0
PAIRS = 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", nargs="?", default="digits")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--goal", type=float, default=0.85)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_memory()  # as a worker does; both loops have it
    cuda = DEVICE.type == "cuda"
    if cuda:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True  # as a worker has it
    print(machine(), torch.cuda.get_device_name(DEVICE) if cuda else "")
    bare = Bare(options.recipe, options.overrides)
    with tempfile.TemporaryDirectory() as folder:
        whole = Whole(options.recipe, options.overrides, Path(folder))
        steps = round(SECONDS * bare.speed(20) / bare.batch)
        whole.speed(steps // 5)
        ours, theirs, ratio, low, high = compare(lambda: whole.speed(steps), lambda: bare.speed(steps), PAIRS)
    print(
        f"{options.recipe}, threads {options.threads}: end to end {ours:.0f} images/s, bare loop {theirs:.0f} "
        f"(medians of {PAIRS} blocks of {steps} steps); ratio {ratio:.3f}, {low:.3f} to {high:.3f}"
        + (f"; peak memory {torch.cuda.max_memory_allocated(DEVICE) / 2**30:.2f} GiB (both loops)" if cuda else "")
    )
    verdict("end to end / bare loop", ratio, f">= {options.goal}", ratio >= options.goal)
    finish()


class Bare:
    """What any loop must at least do: the recipe's model, loss and optimizer on one prepared batch, in its shards."""

    def __init__(self, recipe: str, overrides: list[str]) -> None:
        self.recipe = load(recipe, overrides).recipe
        data = open_data(self.recipe)
        layout = torch.channels_last if self.recipe.model.channels_last else torch.contiguous_format
        made = make_model(self.recipe, data.classes, data.train.shape[0], pretrained=False)
        self.precision: Any = self.recipe.precision
        dtype = self.precision.dtype()
        self.model = made.module.to(device=DEVICE, dtype=dtype, memory_format=layout).train()  # type: ignore[call-overload]
        self.net = self.precision.computing(self.model)
        if self.recipe.model.compile:
            self.net.compile()
        scaler = self.precision.scaler()
        self.scaler = torch.amp.GradScaler(DEVICE.type, scaler.scale, enabled=scaler.dynamic)
        self.optimizer = self.recipe.optim.make(self.model)  # type: ignore[attr-defined]
        self.batch = self.recipe.batch_for(1)
        height, width = self.recipe.data.augment.seen(*data.train.shape[1:])  # type: ignore[attr-defined]
        images = torch.randn(self.batch, data.train.shape[0], height, width)
        labels = torch.arange(self.batch) % data.classes
        pieces = self.recipe.shards_for(1)
        self.shards = [
            (x.to(device=DEVICE, dtype=dtype, memory_format=layout), y.to(DEVICE))
            for x, y in zip(images.chunk(pieces), labels.chunk(pieces), strict=True)
        ]
        self.smoothing = self.recipe.task.smoothing  # type: ignore[attr-defined]

    def speed(self, steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            for images, labels in self.shards:
                with self.precision.context(DEVICE):
                    logits = self.net(images)
                    loss = torch.nn.functional.cross_entropy(
                        logits, labels, reduction="sum", label_smoothing=self.smoothing
                    )
                self.scaler.scale(loss / self.batch).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize(DEVICE)
        return steps * self.batch / (time.perf_counter() - began)


class Whole:
    """A training as `shoal train` runs it in one process."""

    def __init__(self, recipe: str, overrides: list[str], folder: Path) -> None:
        self.recipe, self.overrides, self.folder, self.count = recipe, overrides, folder, 0

    def speed(self, steps: int) -> float:
        rest = [f"length={steps}st", f"eval_every={steps}st", f"save_every={steps}st"]
        recipe = load(self.recipe, [*self.overrides, *rest]).recipe
        setup = Setup.of(recipe, Alone(DEVICE), open_data(recipe))
        self.count += 1
        run = Run(self.folder / str(self.count))
        run.make()
        with (
            open(self.folder / "log", "a") as log,
            Sinks([Plain(log), Jsonl(run, resume_step=None), TensorBoard(run, resume_step=None)]) as sink,
            StopSignals() as signals,
        ):
            Trainer(setup, run, sink, manifest(recipe, "bench", setup.data, 1)).fit(signals)
        return setup.clock.images / setup.clock.trained_s


if __name__ == "__main__":
    main()
