"""Predicting: images/s of `Classifier.look` against its slower half alone: decoding, or a large model's forward.

Models are trained for one step: more would change no speed. Photos are made: JPEGs of 500 x 375 px, some 60 kB each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `shoal predict` has it; torch reads it when it is loaded

import numpy as np
import torch
from pairs import compare, finish, machine, verdict
from PIL import Image

from shoal.base.host import cores
from shoal.data.batches import eval_chunks
from shoal.inference.classifier import Classifier, load

BATCH = 32


def photos(folder: Path, count: int) -> list[str]:
    """Waves with some noise: about as long in bytes as photos are."""
    stream = np.random.default_rng(1)
    rows, columns = np.mgrid[:375, :500]
    paths = []
    for number in range(count):
        waves = [np.sin(rows * 0.02 * (c + 1) + number) + np.cos(columns * 0.03 * (c + 1)) for c in range(3)]
        image = 127 + 50 * np.stack(waves, -1) + stream.normal(0, 12, (375, 500, 3))
        path = folder / "ab"[number % 2] / f"{number:04}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(path, quality=85)
        paths.append(str(path))
    return paths


def classifier_of(folder: Path, model: str, size: int) -> Classifier:
    keys = [f"data.path={folder / 'photos'}", f"data.augment.size={size}", f"model={model}", "data.limit=8"]
    argv = [sys.executable, "-m", "shoal", "train", "own-images", *keys, "batch=4", "length=1st", "ema=null"]
    said = subprocess.run([*argv, "--run", str(folder / model)], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return load(folder / model)


def rate(count: int, work: Iterable[object]) -> float:
    began = time.perf_counter()
    for _ in work:
        pass
    return count / (time.perf_counter() - began)


def decoding(classifier: Classifier, paths: list[str]) -> float:
    """The decode path alone: the same threads make the same batches, and nobody looks at them."""
    given, augment = classifier.given(paths), classifier.recipe.data.augment  # type: ignore[attr-defined]
    return rate(len(paths), eval_chunks(given, augment, BATCH, threads=cores()))


def forward(classifier: Classifier, paths: list[str]) -> float:
    """The bare forward: one batch, over and over, already on the device."""
    images = classifier.prepare(*paths[:BATCH]).to(classifier.device)

    def again() -> Iterator[torch.Tensor]:
        for _ in range(len(paths) // BATCH):
            with torch.inference_mode():
                yield classifier(images).softmax(1).cpu()

    return rate(len(paths) // BATCH * BATCH, again())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "photos").mkdir()
        paths = photos(folder / "photos", options.images)
        for model, size, alone, what in (
            ("cifar-resnet8", 32, decoding, "decoding alone"),
            ("resnet50", 224, forward, "the bare forward"),
        ):
            classifier = classifier_of(folder, model, size)
            some = paths if alone is decoding else paths[: max(BATCH, len(paths) // 5 // BATCH * BATCH)]
            whole = lambda c=classifier, p=some: rate(len(p), c.look(p, top=3, batch=BATCH))  # noqa: E731
            half = lambda a=alone, c=classifier, p=some: a(c, p)  # noqa: E731
            _ = whole(), half()  # warm
            ours, theirs, ratio, low, high = compare(whole, half, options.pairs)
            print(
                f"{model} at {size} px: predict {ours:,.1f}, {what} {theirs:,.1f} images/s "
                f"(medians of {options.pairs} pairs, n = {len(some)}); ratio {ratio:.3f}, {low:.3f} to {high:.3f}"
            )
            verdict(f"predict with {model} / {what}", ratio, ">= 0.9", ratio >= 0.9)
    finish()


if __name__ == "__main__":
    main()
