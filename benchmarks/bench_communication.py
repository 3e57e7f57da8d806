"""What cheaper communication costs: accuracy against bytes, two workers, by paired seeds against ddp as it is.

bench_communication.py                                        the digits: minutes
bench_communication.py --recipe cifar10-proof data.path=FOLDER    the table that is promised: hours of two cores

Bytes are those of one worker's gradients, weights, statistics and figures per step, over the second half of each
training, when PowerSGD's warm-up is over. The digits' net is so small that its vectors, which PowerSGD sends whole, and
its statistics are a good part of them.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from pairs import events, finish, interval, machine, verdict

WAYS = {
    "fp16": ("ddp:compress=fp16", 2),
    "bf16": ("ddp:compress=bf16", 2),
    "PowerSGD rank 1": ("ddp:compress=powersgd", 20),
    "2-bit, threshold 0.5": ("ddp:compress=2bit", 12),
    "2-bit, threshold 2": ("ddp:compress=2bit,threshold=2", 12),
    "local SGD, H=8": ("local_sgd:every=8", 7),
    "… after 2 epochs": ("local_sgd:every=8,after=2ep", 7),
    "DiLoCo, H=8": ("local_sgd:every=8,outer_lr=0.7,outer_momentum=0.9", 7),
}
"""Name -> strategy, and how many times fewer bytes are promised on cifar10-proof."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--recipe", default="digits")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="some ways, by their strategies, between spaces")
    parser.add_argument("--keep", type=Path, help="a file of the trainings so far: stopped, it goes on from there")
    options = parser.parse_args()
    chosen = {name: way for name, way in WAYS.items() if not options.only or way[0] in options.only.split()}
    print(machine(), options.recipe, *options.overrides, flush=True)

    def trained(strategy: str, seed: int) -> tuple[float, float]:
        """Top-1 in points, bytes per step."""
        separator = "," if ":" in strategy else ":"
        words = (f"strategy={strategy}{separator}threads=1", f"seed={seed}", "-n", "2")
        told = events(options.recipe, *options.overrides, *words, keep=options.keep)
        sent = [event["bytes_per_step"] for event in told if event["event"] == "train"]
        return 100 * told[-1]["top1"], statistics.mean(sent[len(sent) // 2 :])

    whole = [trained("ddp", seed) for seed in range(options.seeds)]
    dense = whole[0][1]
    print(f"ddp: {dense:,.0f} bytes per step, top-1 {statistics.mean(top1 for top1, _ in whole):.2f}", flush=True)
    for name, (strategy, fewer) in chosen.items():
        got = [trained(strategy, seed) for seed in range(options.seeds)]
        points = ", ".join(f"{top1 - before:+.2f}" for (top1, _), (before, _) in zip(got, whole, strict=True))
        print(f"{strategy}: points by seed {points}", flush=True)
        mean, low, high = interval([top1 - before for (top1, _), (before, _) in zip(got, whole, strict=True)])
        ratio = dense / statistics.mean(sent for _, sent in got)
        told = (
            f"{name:22} 1/{ratio:.1f} of the bytes, top-1 {mean:+.2f} points, 95 % interval {low:+.2f} to {high:+.2f}"
        )
        if options.recipe == "cifar10-proof":
            verdict(told, ratio, f">= {fewer}", ratio >= fewer)
        else:
            print(told, flush=True)
    finish()


if __name__ == "__main__":
    main()
