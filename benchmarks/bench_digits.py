"""The built-in digits on two workers: accuracy over seeds, seconds of training."""

from __future__ import annotations

import statistics

from pairs import finish, machine, training, verdict

SEEDS = range(5)


def main() -> None:
    print(machine())
    ends = [training("digits", "-n", "2", f"seed={seed}") for seed in SEEDS]
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
