"""What a teacher is worth: a student that has one against the same student without, by paired seeds.

    bench_distill.py data.path=FOLDER                       CIFAR-10: some 5 processor-minutes, the teacher takes 2
    bench_distill.py data.path=FOLDER --teacher runs/fast   with a teacher that is there

Both sides see the same images in the same order from the same first weights; the side without is `task=classify`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from pairs import finish, interval, machine, training, verdict


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("overrides", nargs="*", help="of both sides; data.path=FOLDER")
    parser.add_argument("--recipe", default="cifar10-distill")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--teacher", type=Path, help="a run folder; absent: cifar10-fast is trained for 4 epochs")
    options = parser.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        teacher = options.teacher or trained(Path(folder) / "teacher", options.overrides)
        about = [f"task.teacher.run={teacher}", f"task.cache={folder}/soft-labels.safetensors"]
        gains, costs = [], []
        for seed in range(options.seeds):
            words = [options.recipe, *options.overrides, f"seed={seed}"]
            with_it, without = training(*words, *about), training(*words, "task=classify")
            gains.append(100 * (with_it["top1"] - without["top1"]))
            costs.append(with_it["cpu_s"] / without["cpu_s"])
            print(
                f"seed {seed}: top-1 {with_it['top1']:.4f} with a teacher, {without['top1']:.4f} without, "
                f"{gains[-1]:+.2f} points; processor time {costs[-1]:.2f} x",
                flush=True,
            )
    mean, low, high = interval(gains)
    print(
        f"{options.recipe}, n = {len(gains)} paired seeds: {mean:+.2f} points, 95 % interval {low:+.2f} to "
        f"{high:+.2f}; pairs {min(gains):+.2f} to {max(gains):+.2f}; processor time {statistics.median(costs):.2f} x "
        f"({min(costs):.2f} to {max(costs):.2f}), soft labels once beside"
    )
    verdict("gain by a teacher, points, lower end", low, "> 0", low > 0)
    finish()


def trained(folder: Path, overrides: list[str]) -> Path:
    words = ["cifar10-fast", *overrides, "length=4ep", "--run", str(folder)]
    subprocess.run([sys.executable, "-m", "shoal", "train", *words], check=True, stdout=subprocess.DEVNULL)
    return folder


if __name__ == "__main__":
    main()
