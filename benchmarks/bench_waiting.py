"""Threads that wait for work asleep, as Shoal has them, against threads that wait spinning, as OpenMP has them by
itself: images/s of a training of two threads, on this machine as it is, and beside as many busy processes as cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from pairs import compare, finish, machine, training, verdict

from shoal.base.host import cores

WORDS = (
    "cifar10-resnet8",
    "data=synthetic",
    "strategy.threads=2",
    "data.images=20000",
    "eval_every=1ep",
    "save_every=1ep",
)
SPINS = {"asleep": "0", "spinning": "300000"}
"""Rounds of looking before a thread falls asleep; the second is what libgomp does where nobody says anything."""


def speed(how: str, steps: int) -> float:
    os.environ["GOMP_SPINCOUNT"] = SPINS[how]
    return training(*WORDS, f"length={steps}st")["images_per_s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    print(machine())
    for busy, steps, least in ((0, 80, 0.95), (cores(), 10, 1.0)):
        beside = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            asleep, spinning, ratio, low, high = compare(
                lambda n=steps: speed("asleep", n), lambda n=steps: speed("spinning", n), options.pairs
            )
        finally:
            for process in beside:
                process.kill()
                process.wait()
        told = f"asleep {asleep:,.0f}, spinning {spinning:,.0f} images/s (n = {options.pairs})"
        print(f"beside {busy} busy processes: {told}")
        verdict(f"asleep / spinning ({low:.2f} to {high:.2f})", ratio, f">= {least}", ratio >= least)
    finish()


if __name__ == "__main__":
    main()
