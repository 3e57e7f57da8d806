"""Where `shoal data io` says that a training is not input-bound, it is not: resnet18 at 224 px from JPEGs (those of
jpegs.py) against made-up images in memory, by turns."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from jpegs import unpacked
from pairs import compare, finish, machine, training, verdict

STEPS = 10
KEPT = 0.95


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    print(machine(), flush=True)
    short = [f"{key}={STEPS}st" for key in ("length", "eval_every", "save_every")]
    what = ["imagenet-resnet50", "model=resnet18", "batch=32", "shards=4", *short, *options.overrides]
    with tempfile.TemporaryDirectory() as folder:
        place, images = unpacked(Path(folder) / "jpegs", 1)
        jpegs = [*what, f"data.path={place}", f"data.val={place}", "data.limit=256"]
        argv = [sys.executable, "-m", "shoal", "data", "io", *jpegs, "--json"]
        told = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)
        print(f"data io, of {len(images)} JPEGs: {told['verdict']}", flush=True)
        memory = [*what, "data=synthetic", "data.images=256", "data.size=224", "data.classes=100"]

        def speed(words: list[str]) -> float:
            return training(*words, "-n", "1")["images_per_s"]

        ours, theirs, ratio, low, high = compare(lambda: speed(jpegs), lambda: speed(memory), options.pairs)
    print(f"resnet18 at 224 px: {ours:.1f} images/s from JPEGs, {theirs:.1f} from memory (n = {options.pairs} pairs)")
    if told["input_bound"]:
        print(f"input-bound here: {ratio:.3f} ({low:.3f} to {high:.3f}) of its speed is left")
    else:
        verdict(f"speed left ({low:.3f} to {high:.3f})", ratio, f">= {KEPT}", ratio >= KEPT)
    finish()


if __name__ == "__main__":
    main()
