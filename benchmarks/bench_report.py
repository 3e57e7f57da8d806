"""The page of a large run: 1,000 classes, 50,000 validation images, 100,000 lines of metrics; and what gathering its
predictions adds to a validation. Prints n, spread, and the limits."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from pairs import machine

from shoal.base.run import Run
from shoal.recipe.load import dump, load
from shoal.report.predictions import Predictions

CLASSES, IMAGES, LINES, TIMES = 1000, 50_000, 100_000, 5
MOST_S, MOST_BYTES = 20.0, 5_000_000


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "large")
        make(run)
        took = []
        for _ in range(TIMES):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-m", "shoal", "report", run.folder], check=True, stdout=subprocess.DEVNULL)
            took.append(time.perf_counter() - began)
        size = run.report.stat().st_size
        what = f"report of {CLASSES:,} classes, {IMAGES:,} images, {LINES:,} lines"
        print(f"{what}: median {statistics.median(took):.2f} s; "
              f"{min(took):.2f} to {max(took):.2f} (n = {TIMES}; limit {MOST_S:g} s)")  # fmt: skip
        print(f"… size {size / 1e6:.2f} MB (limit {MOST_BYTES / 1e6:g} MB)")
    gathering()


def make(run: Run) -> None:
    """A run folder as a long training leaves it."""
    rng = np.random.default_rng(0)
    run.log("worker", 0).parent.mkdir(parents=True)
    run.recipe.write_text(dump(load("imagenet-resnet50", ["data.path=FOLDER"]).recipe))
    per_epoch, batch, epochs = 1_281_167, 256, 90
    step_s = per_epoch * epochs / LINES
    events: list[dict] = [{
        "event": "start", "step": 0, "images": 0, "recipe": "imagenet-resnet50", "model": "resnet50",
        "parameters": 25_557_032, "num_ranks": 8, "batch": batch, "shards": 8, "steps_per_epoch": per_epoch // batch,
        "steps": epochs * per_epoch // batch, "images_per_epoch": per_epoch, "epochs": float(epochs),
        "strategy": "ddp", "why": [], "resumed_from": None, "time": 1.7e9,
    }]  # fmt: skip
    for line in range(1, LINES):
        images, done = int(line * step_s), line / LINES
        events.append({
            "event": "train", "step": images // batch, "epoch": images // per_epoch, "batch": line, "images": images,
            "loss": 7 - 5.5 * done**0.3 + rng.normal(0, 0.1), "top1": 0.75 * done**0.5, "top5": 0.9 * done**0.5,
            "lr": 0.1 * (1 - done), "images_per_s": 2500 + rng.normal(0, 60), "wait_share": 0.02,
            "trained_s": images / 2500,
        })  # fmt: skip
        if line % (LINES // epochs) == 0:
            events.append({
                "event": "val", "step": images // batch, "epoch": images // per_epoch, "images": images,
                "count": IMAGES, "loss": 7 - 5.7 * done**0.3,
                "top1": 0.76 * done**0.3, "top5": 0.93 * done**0.3, "averaged": False,
                "correct1": int(0.76 * done**0.3 * IMAGES), "correct5": int(0.93 * done**0.3 * IMAGES), "seconds": 30.0,
            })  # fmt: skip
    events.append({
        "event": "end", "step": epochs * per_epoch // batch, "images": per_epoch * epochs, "reason": "length",
        "trained_s": per_epoch * epochs / 2500, "paused_s": 30.0 * epochs, "program_s": per_epoch * epochs / 2400,
        "first_step_s": 20.0, "images_per_s": 2500.0, "wait_share": 0.02, "top1": 0.76, "top5": 0.93, "loss": 1.3,
        "best_top1": 0.76, "best_step": events[-1]["step"],
    })  # fmt: skip
    run.metrics_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    step = events[-1]["step"]
    run.predictions(step).parent.mkdir(parents=True)
    run.predictions(step).write_bytes(predictions(rng).to_bytes())
    run.write_best(step, 0.76)


def predictions(rng: np.random.Generator) -> Predictions:
    """Three in four right, the others near their class."""
    labels = np.repeat(np.arange(CLASSES), IMAGES // CLASSES).astype(np.int32)
    guesses = (labels[:, None] + rng.integers(1, 30, (IMAGES, 5))) % CLASSES
    right = rng.random(IMAGES) < 0.76
    guesses[right, 0] = labels[right]
    sure = np.sort(rng.dirichlet(np.full(6, 0.5), IMAGES), 1)[:, ::-1].astype(np.float32)
    names = tuple(f"a class with the number {label}" for label in range(CLASSES))
    found = Predictions(names, labels, guesses.astype(np.int32), sure[:, :5], np.where(right, sure[:, 0], sure[:, 5]))
    chosen = found.worth_a_look()
    ramp = np.linspace(0, 200, 96)[:, None, None] + np.linspace(0, 50, 96)[None, :, None]
    noise = rng.normal(0, 12, (len(chosen), 96, 96, 3))
    return found.with_pictures(chosen, (ramp + noise).clip(0, 255).astype(np.uint8))


def gathering() -> None:
    """A validation of 10,000 CIFAR-sized images by a small net, and the part of it that only predictions need."""
    import torch

    from shoal.data.augment import Augment
    from shoal.data.sources.synthetic import Synthetic
    from shoal.models import Model, create
    from shoal.report.picture import sheet
    from shoal.step.gang import Alone
    from shoal.train import evaluate
    from shoal.train.gallery import Gallery

    torch.set_num_threads(1)
    source = Synthetic(images=40_000, classes=10, channels=3, size=32)
    data, model = source.open("val"), create(Model(name="cifar-resnet8"), classes=10, channels=3, seed=0).module.eval()
    gallery, rows = Gallery(data, source), evaluate._rows
    extra = [0.0]

    def timed(*words: torch.Tensor) -> torch.Tensor:
        began = time.perf_counter()
        told = rows(*words)
        extra[0] += time.perf_counter() - began
        return told

    evaluate._rows = timed
    shares = []
    with torch.inference_mode():
        for _ in range(TIMES):
            extra[0], began = 0.0, time.perf_counter()
            _, judged = evaluate.judge(lambda batch: model(batch.images / 255), data, Augment(), 256, Alone())
            validated = time.perf_counter()
            gallery.with_pictures(judged).to_bytes()
            sheet(gallery.with_examples(judged))
            after = time.perf_counter() - validated
            shares.append((extra[0] + after) / (validated - began - extra[0]))
    print(f"predictions, pictures and examples / the validation of {len(data.labels):,} images by resnet8, 1 thread: "
          f"{statistics.median(shares):.2%}; {min(shares):.2%} to {max(shares):.2%} (n = {TIMES})")  # fmt: skip


if __name__ == "__main__":
    main()
