"""A recipe's images per second as `shoal train` reaches them, each in processes of its own, by turns:

against a plain eager torch loop: one prepared batch, contiguous, torch's optimizer and the allocator as they come, as
many threads; two workers of one thread against one; and, for orientation, against a figure of another system.

    bench_speed.py cifar10-resnet8 data.path=FOLDER
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from pairs import compare, finish, machine, training, verdict

PAIRS = 5
BLOCK_S = 8.0
MXNET = {"cifar10-resnet8": (831, 1100)}
"""Images/s of MXNet 1.9.1 at a recipe's shape, measured once on two cores of this kind: one process, two workers."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", nargs="?", default="cifar10-resnet8")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--plain", type=float, metavar="SECONDS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    what = (options.recipe, *options.overrides)
    if options.plain:
        print(plain_loop(*what, seconds=options.plain))
        return
    print(machine())
    steps = f"{round(BLOCK_S * plain(*what) / batch(*what)) + 1}st"
    short = [f"{key}={steps}" for key in ("length", "eval_every", "save_every")] + ["data.limit=20000"]

    def speed(workers: int) -> float:
        return training(*what, *short, "-n", str(workers), "strategy.threads=1")["images_per_s"]

    def one() -> float:
        return speed(1)

    ours, theirs, ratio, low, high = compare(one, lambda: plain(*what), PAIRS)
    print(f"{options.recipe}, 1 thread: Shoal {ours:.0f} images/s, plain loop {theirs:.0f} (n = {PAIRS} pairs)")
    verdict(f"Shoal / plain loop ({low:.2f} to {high:.2f})", ratio, ">= 1.5", ratio >= 1.5)
    two, single, ratio, low, high = compare(lambda: speed(2), one, PAIRS)
    print(f"2 workers of 1 thread {two:.0f} images/s, 1 worker {single:.0f} (n = {PAIRS} pairs)")
    verdict(f"2 workers / 1 worker ({low:.2f} to {high:.2f})", ratio, ">= 1.75", ratio >= 1.75)
    for figure, theirs, name in zip((max(ours, single), two), MXNET.get(options.recipe, ()), "12", strict=False):
        print(f"{name} worker: {figure / theirs:.2f} x MXNet's {theirs} (another day, the same kind of machine)")
    finish()


def plain(*what: str) -> float:
    """Images/s of `plain_loop` in a fresh process."""
    argv = [sys.executable, __file__, *what, "--plain", str(BLOCK_S)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return float(subprocess.run(argv, check=True, capture_output=True, text=True, env=env).stdout)


def batch(recipe: str, *overrides: str) -> int:
    from shoal.recipe.load import load

    return load(recipe, overrides).recipe.batch_for(1)


def plain_loop(recipe: str, *overrides: str, seconds: float) -> float:
    import torch

    from shoal.recipe.load import load
    from shoal.train.setup import make_model, open_data

    made = load(recipe, overrides).recipe
    data = open_data(made)
    model = make_model(made, data.classes, data.train.shape[0], pretrained=False).module.train()
    optim = made.optim
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=optim.lr,  # type: ignore[attr-defined]
        momentum=optim.momentum,  # type: ignore[attr-defined]
        weight_decay=optim.weight_decay,  # type: ignore[attr-defined]
    )
    size = made.batch_for(1)
    images = torch.randn(size, data.train.shape[0], *made.data.augment.seen(*data.train.shape[1:]))  # type: ignore[attr-defined]
    labels = torch.arange(size) % data.classes

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    for _ in range(5):
        step()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        step()
        steps += 1
    return steps * size / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
