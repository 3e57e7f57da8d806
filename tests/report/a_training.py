"""One event of each kind, as a small training reports them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.base.run import Run
from shoal.recipe.load import dump, load
from shoal.report.predictions import Predictions
from shoal.report.sinks import Event, Sink
from shoal.report.sinks.jsonl import Jsonl

START: Event = {
    "event": "start", "step": 0, "images": 0, "recipe": "digits", "model": "digits-cnn", "parameters": 33338,
    "num_ranks": 2, "batch": 64, "shards": 4, "steps_per_epoch": 23, "steps": 46, "images_per_epoch": 1438,
    "epochs": 2.0, "strategy": "ddp", "why": ["threads: 1 per worker (2 cores, 2 workers)"], "resumed_from": None,
    "time": 1.7e9,
}  # fmt: skip
TRAIN: Event = {
    "event": "train", "step": 20, "epoch": 0, "batch": 20, "images": 1280, "loss": 2.1, "top1": 0.168155, "top5": 0.5,
    "lr": 0.05, "images_per_s": 223.74, "wait_share": 0.003, "trained_s": 5.7,
}  # fmt: skip
EPOCH: Event = {
    "event": "epoch", "step": 23, "epoch": 0, "images": 1438, "loss": 1.9, "top1": 0.391701, "top5": 0.8,
    "seconds": 6.423,
}  # fmt: skip
VAL: Event = {
    "event": "val", "step": 23, "epoch": 0, "images": 1438, "loss": 0.3, "top1": 0.97493, "top5": 1.0, "count": 359,
    "correct1": 350, "correct5": 359, "averaged": False, "seconds": 0.1,
}  # fmt: skip
SAVE: Event = {
    "event": "save", "step": 23, "epoch": 0, "images": 1438, "path": "runs/x/checkpoints/step-00000023",
    "seconds": 0.05, "best": True,
}  # fmt: skip
END: Event = {
    "event": "end", "step": 46, "images": 2876, "reason": "length", "trained_s": 12.3, "paused_s": 1.1,
    "program_s": 16.0, "first_step_s": 3.2, "images_per_s": 1169.0, "wait_share": 0.004, "top1": 0.992, "top5": 1.0,
    "loss": 0.3, "best_top1": 0.992, "best_step": 46,
}  # fmt: skip


def write_all(sink: Sink, *events: Event) -> None:
    with sink:
        for event in events:
            sink.write(event)


def reported(folder: Path, *events: Event) -> Run:
    """A run folder in which these events were reported."""
    run = Run(folder)
    write_all(Jsonl(run, resume_step=None), *events)
    return run


def predictions() -> Predictions:
    """Of twelve images of three classes, one without a label; three mistakes, and pictures of some."""
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, -1], np.int32)
    guesses = np.array([0, 1, 2, 0, 1, 2, 1, 1, 0, 0, 2, 1], np.int32)
    sure = np.linspace(0.9, 0.6, len(labels)).astype(np.float32)
    of_label = np.where(guesses == labels, sure, (1 - sure) / 4).astype(np.float32)
    of_label[-1] = 0
    others = (guesses[:, None] + [0, 1, 2]) % 3
    probabilities = np.stack([sure, (1 - sure) * 0.75, (1 - sure) / 4], 1)
    found = Predictions(("cat", "dog <b>", "ship"), labels, others, probabilities, of_label)
    chosen = found.worth_a_look()
    rng = np.random.default_rng(0)
    return found.with_pictures(chosen, rng.integers(0, 256, (len(chosen), 6, 6, 3), dtype=np.uint8))


def judged(folder: Path, *events: Event) -> Run:
    """A run folder with these events, a recipe, and the predictions of its best validation, after step 23."""
    run = reported(folder, *events)
    run.recipe.write_text(dump(load("digits").recipe))
    run.predictions(23).parent.mkdir(parents=True)
    run.predictions(23).write_bytes(predictions().to_bytes())
    run.write_best(23, 0.97493)
    return run
