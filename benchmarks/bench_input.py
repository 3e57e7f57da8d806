"""Images in: finding the records of a .rec against reading it; all its images decoded once against decoding alone.

Needs CIFAR-10 as cifar10_train.rec in the folder SHOAL_TEST_DATA (default: ../shared/data beside the repository).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
import torchvision.io  # noqa: F401  (brings the operator)
from pairs import compare, finish, machine, verdict

from shoal.base.host import cores
from shoal.data.decode import hold
from shoal.data.recordio import Records
from shoal.data.source import Streamed

PAIRS = 7
FOLDER = Path(os.environ.get("SHOAL_TEST_DATA") or Path(__file__).parents[1] / "../shared/data")


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def decode_alone(images: list[bytes]) -> None:
    """By as many threads as there are cores; nothing is kept."""

    def some(low: int) -> None:
        for image in images[low : low + 64]:
            torch.ops.image.decode_jpeg(torch.frombuffer(bytearray(image), dtype=torch.uint8), 3, False)

    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(some, range(0, len(images), 64)))


def main() -> None:
    file = FOLDER / "cifar10_train.rec"
    if not file.is_file():
        sys.exit(f"no {file}; SHOAL_TEST_DATA names the folder of the data")
    print(machine())
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        alone = Path(folder) / "alone.rec"  # without its .idx
        alone.symlink_to(file.resolve())
        pair = (partial(timed, lambda: Records(alone)), partial(timed, alone.read_bytes))
        ours, theirs, ratio, low, high = compare(*pair, PAIRS)
        print(
            f"index scan of {file.stat().st_size / 1e6:.1f} MB: {ours * 1e3:.1f} ms, reading {theirs * 1e3:.1f} ms "
            f"(medians of {PAIRS} pairs); ratio {ratio:.2f}, {low:.2f} to {high:.2f}"
        )
        verdict("index scan / reading the file", ratio, "<= 3", ratio <= 3)

    records = Records(file)
    names = tuple("0123456789")
    split = Streamed(
        records.image, records.where, records.labels(), names, mean=(0.0,) * 3, std=(1.0,) * 3, side=32, on_bad="stop"
    )
    images = [bytes(records.image(number)) for number in range(len(records))]
    pair = (partial(timed, lambda: hold(split, split.shape)), partial(timed, partial(decode_alone, images)))
    ours, theirs, ratio, low, high = compare(*pair, PAIRS)
    print(
        f"{len(images):,} images decoded into memory: {ours:.2f} s, decoding alone {theirs:.2f} s with as many threads "
        f"(medians of {PAIRS} pairs); ratio {ratio:.2f}, {low:.2f} to {high:.2f}"
    )
    verdict("decoded into memory / decoding alone", ratio, "<= 1.3", ratio <= 1.3)
    finish()


if __name__ == "__main__":
    main()
