"""What each augmentation costs: processor time per image of 32 px, a whole batch at a time, and of 224 px, one by one.

Needs no data: noise is augmented. One thread; cases in turns.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from pairs import machine

from shoal.data.augment import Affine, Augment, Colour, Cutout, Erase
from shoal.data.augment.policies.autoaugment import AutoAugment
from shoal.data.augment.policies.randaugment import RandAugment
from shoal.data.augment.policies.trivialaugment import TrivialAugment
from shoal.data.decode import Pictures
from shoal.data.source import Held

KINDS = {
    "affine": {"affine": Affine(rotate=10, shear=0.1)},
    "randaugment": {"policy": RandAugment()},
    "trivialaugment": {"policy": TrivialAugment()},
    "autoaugment": {"policy": AutoAugment()},
    "jitter": {"colour": Colour(brightness=0.4, contrast=0.4, saturation=0.4)},
    "hls": {"colour": Colour(hls=(36, 50, 50))},
    "pca": {"colour": Colour(pca=0.1)},
    "erase": {"erase": Erase(probability=0.25)},
    "cutout": {"cutout": Cutout(side=16)},
}


def measured(side: int, images: int, stored: int, base: dict, rounds: int) -> None:
    """Prints microseconds per image of the base alone, and what each kind adds to it."""
    pixels = np.random.default_rng(0).integers(0, 256, (images, 3, stored, stored), np.uint8)
    held = Held(pixels, np.zeros(images, np.int64), ("a",), mean=(124, 116, 104), std=(58, 57, 57))
    cases = {"base": Pictures(held, Augment(**base))}
    cases |= {name: Pictures(held, Augment(**base, **options)) for name, options in KINDS.items()}
    seen: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, pictures in cases.items():
            began = time.thread_time()
            pictures.train(np.arange(images), seed=0, epoch=turn)
            if turn:  # the first loads libraries
                seen[name].append((time.thread_time() - began) / images * 1e6)
    middle = statistics.median(seen["base"])
    print(f"{side} px, {base}: {middle:,.0f} us of processor time per image (n = {rounds})")
    for name in KINDS:
        more = sorted(one - plain for one, plain in zip(seen[name], seen["base"], strict=True))
        print(f"  {name}: {statistics.median(more):+,.0f} us ({more[0]:+,.0f} to {more[-1]:+,.0f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(machine())
    measured(32, 512, 32, {"pad": 4, "crop": 32, "mirror": True}, rounds)
    measured(224, 16, 400, {"size": 224, "mirror": True}, rounds)


if __name__ == "__main__":
    main()
