"""The built-in digits on two workers: accuracy over seeds, seconds of training."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from pairs import finish, machine, verdict

SEEDS = range(5)


def train(seed: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "shoal", "train", "digits", "-n", "2", f"seed={seed}", "--run", f"{folder}/run"]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    return next(event for event in map(json.loads, lines) if event["event"] == "end")


def main() -> None:
    print(machine())
    ends = [train(seed) for seed in SEEDS]
    for seed, end in zip(SEEDS, ends, strict=True):
        speed = f"trained {end['trained_s']:.1f} s, {end['images_per_s']:.0f} images/s"
        print(f"seed {seed}: top-1 {end['top1']:.4f} of 359, {speed}")
    top1 = [end["top1"] for end in ends]
    seconds = [end["trained_s"] for end in ends]
    print(
        f"top-1 {statistics.mean(top1):.4f} +- {statistics.stdev(top1):.4f} (n = {len(top1)}), trained "
        f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"
    )
    verdict("smallest top-1", min(top1), ">= 0.98", min(top1) >= 0.98)
    verdict("longest training, s", max(seconds), "< 20", max(seconds) < 20)
    finish()


if __name__ == "__main__":
    main()
