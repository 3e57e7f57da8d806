"""Accuracy of a recipe over seeds, and the time it took: wall and processor seconds of training, start-up left out.

By default the built-in digits on two workers. CIFAR-10, as docs/measured.md has it:
    bench_accuracy.py cifar10-resnet8 data.path=FOLDER -n 2 --seeds 3 --top1 0.47 --mean
    bench_accuracy.py cifar10-fast data.path=FOLDER --seeds 3 --top1 0.80 --mean --cpu-seconds 278
"""

from __future__ import annotations

import argparse
import statistics

from pairs import finish, machine, training, verdict


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", nargs="?", default="digits")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-n", "--workers", type=int)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--top1", type=float, help="goal")
    parser.add_argument("--mean", action="store_true", help="the goal is for the mean over seeds, not for each")
    parser.add_argument("--seconds", type=float, help="goal for the longest training")
    parser.add_argument("--cpu-seconds", type=float, help="goal for the training that took the most, over all workers")
    options = parser.parse_args()
    if options.recipe == "digits":
        options.workers, options.top1, options.seconds = options.workers or 2, options.top1 or 0.98, 20.0
    workers = options.workers or 1
    print(machine())
    ends = []
    for seed in range(options.seeds):
        end = training(options.recipe, *options.overrides, f"seed={seed}", "-n", str(workers))
        ends.append(end)
        print(
            f"seed {seed}: top-1 {end['top1']:.4f}, trained {end['trained_s']:.1f} s, processor {end['cpu_s']:.1f} s a "
            f"worker with validation, {end['images_per_s']:.0f} images/s, waited {end['wait_share']:.2%}",
            flush=True,
        )
    top1, wall = ([end[key] for end in ends] for key in ("top1", "trained_s"))
    cpu = [workers * end["cpu_s"] for end in ends]
    print(
        f"{options.recipe}, {workers} workers, n = {len(ends)}: top-1 {statistics.mean(top1):.4f} +- "
        f"{statistics.stdev(top1):.4f}, trained {spread(wall)} s, processor seconds in all {spread(cpu)}"
    )
    if options.top1:
        name, figure = ("mean top-1", statistics.mean(top1)) if options.mean else ("smallest top-1", min(top1))
        verdict(name, figure, f">= {options.top1}", figure >= options.top1)
    if options.seconds:
        verdict("longest training, s", max(wall), f"< {options.seconds}", max(wall) < options.seconds)
    if options.cpu_seconds:
        verdict("most processor seconds", max(cpu), f"<= {options.cpu_seconds}", max(cpu) <= options.cpu_seconds)
    finish()


def spread(figures: list[float]) -> str:
    return f"{statistics.median(figures):.1f} ({min(figures):.1f} to {max(figures):.1f})"


if __name__ == "__main__":
    main()
