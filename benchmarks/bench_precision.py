"""Accuracy of half precisions against fp32, by paired seeds on one worker.

bench_precision.py                                   O1, O2 and bf16 on the digits; a CPU has no fast float16 (a step of
                                                     O1 takes some 80 times fp32's): half an hour
bench_precision.py cifar10-proof data.path=FOLDER    where there is a GPU
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pairs import finish, interval, machine, training, verdict

PRECISIONS = {"bf16": ("precision=bf16",)} | {
    word: (f"precision={word}", "precision.unsuited=slow") for word in ("O2", "O1")
}
GOAL = -0.5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", nargs="?", default="digits")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--precisions", default="bf16,O2,O1")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="a file of the trainings so far: stopped, it goes on from there")
    options = parser.parse_args()
    what = [options.recipe, *options.overrides]
    print(machine(), " ".join(what), flush=True)

    def end(seed: int, *words: str) -> dict:
        return training(*what, *words, f"seed={seed}", "-n", "1", keep=options.keep)

    whole = [100 * end(seed)["top1"] for seed in range(options.seeds)]
    print(f"fp32: top-1 by seed {', '.join(f'{one:.2f}' for one in whole)}", flush=True)
    for precision in options.precisions.split(","):
        ends = [end(seed, *PRECISIONS[precision]) for seed in range(options.seeds)]
        differences = [100 * ended["top1"] - fp32 for ended, fp32 in zip(ends, whole, strict=True)]
        mean, low, high = interval(differences)
        told = ", ".join(f"{one:+.2f}" for one in differences)
        print(
            f"{precision} - fp32, points of top-1 by seed: {told}; skipped steps {sum(one['skipped'] for one in ends)}"
        )
        name = f"{precision}: mean {mean:+.2f}, 95 % interval {low:+.2f} to {high:+.2f}; its lower end"
        verdict(name, low, f"> {GOAL}", low > GOAL)
    finish()


if __name__ == "__main__":
    main()
