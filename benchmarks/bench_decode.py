"""From JPEG to batch: random-resized crops of 224 px of ImageNet JPEGs, against torchvision; crops of small images.

Needs imagenet_sample.tar in the folder SHOAL_TEST_DATA (default: ../shared/data beside the repository), and Shoal's
extra `fast`.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import simplejpeg
import torch
from jpegs import unpacked
from pairs import finish, machine, verdict
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional, v2

from shoal.base.duration import Span
from shoal.base.host import cores
from shoal.data.augment import Augment
from shoal.data.batches import Batches, Cut
from shoal.data.decoders.auto import Auto
from shoal.data.image import decode
from shoal.data.source import Held
from shoal.data.sources.folder import Folder
from shoal.step.inputs import Inputs

SIDE, BATCH, COPIES = 224, 128, 8
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


def pil(boxes: list[tuple[int, int, int, int]], place: int, data: bytes) -> np.ndarray:
    """torchvision's transforms on a Pillow image."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(functional.resized_crop(image, *boxes[place], [SIDE, SIDE]))  # type: ignore[arg-type]


def shoal(augment: Augment, count: int) -> Callable[[int, bytes], np.ndarray]:
    crops, jpeg = augment.crops(np.arange(count), seed=0, epoch=0), Auto().ready()
    return lambda place, data: crops.cut(place, decode(data, jpeg)).permute(1, 2, 0).numpy()


def floor(place: int, data: bytes) -> np.ndarray:
    """Entropy decoding of the whole file and almost nothing else: grey, at an eighth of the size."""
    return simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, min_factor=8, strict=False)


def psnr(route: Callable, images: list[bytes], reference: list[np.ndarray]) -> float:
    """Median over the images, dB."""
    errors = [((route(i, d).astype(float) - reference[i]) ** 2).mean() for i, d in enumerate(images)]
    return statistics.median(10 * np.log10(255**2 / max(error, 1e-9)) for error in errors)


def per_core(images: list[bytes], rounds: int) -> float:
    """Prints each route's processor time on one thread, in turns; returns the default's images/s."""
    count = len(images)
    plain, fast = (Augment(size=SIDE, filter=name) for name in ("antialias", "linear"))
    crops = plain.crops(np.arange(count), seed=0, epoch=0)
    boxes = [crops.box(place, *Image.open(io.BytesIO(data)).size[::-1]) for place, data in enumerate(images)]
    routes = {
        "torchvision on Pillow": partial(pil, boxes),
        "default": shoal(plain, count),
        "filter: linear": shoal(fast, count),
        "entropy decoding": floor,
    }
    seconds: dict[str, list[float]] = {name: [] for name in routes}
    for _ in range(rounds):
        for name, route in routes.items():
            began = time.thread_time()
            for place, data in enumerate(images):
                route(place, data)
            seconds[name].append((time.thread_time() - began) / count)
    reference = [routes["torchvision on Pillow"](place, data).astype(float) for place, data in enumerate(images)]
    for name, times in seconds.items():
        ratios = sorted(a / b for a, b in zip(seconds["torchvision on Pillow"], times, strict=True))
        near = "" if name == "entropy decoding" else f", {psnr(routes[name], images, reference):.1f} dB"
        print(
            f"{name}: {statistics.median(times) * 1e3:.2f} ms of processor time per image, "
            f"{statistics.median(ratios):.2f} x the first ({ratios[0]:.2f} to {ratios[-1]:.2f}, n = {rounds}){near}"
        )

    def ratio(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(seconds[other], seconds[one], strict=True))

    default = ratio("default", "torchvision on Pillow")
    verdict("default / torchvision on Pillow, per core", default, ">= 1.3", default >= 1.3)
    fastest = ratio("filter: linear", "torchvision on Pillow")
    verdict("filter: linear / torchvision on Pillow, per core", fastest, ">= 1.6", fastest >= 1.6)
    of_floor = ratio("filter: linear", "entropy decoding")
    verdict("filter: linear / entropy decoding alone", of_floor, ">= 0.45, 0.6 wished", of_floor >= 0.45)
    quality = psnr(routes["default"], images, reference)
    verdict("default, median PSNR against Pillow, dB", quality, ">= 45", quality >= 45)
    return 1 / statistics.median(seconds["default"])


class Loader:
    """torchvision's way: ImageFolder and a DataLoader with so many workers, uint8."""

    def __init__(self, folder: Path, workers: int) -> None:
        change = v2.Compose([v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip(), v2.PILToTensor()])
        data = ImageFolder(str(folder), change)
        self._loader = torch.utils.data.DataLoader(
            data, BATCH, shuffle=True, num_workers=workers, persistent_workers=True
        )

    def epoch(self) -> float:
        """Images/s, from asking for the first batch on: what workers fetch beforehand is in it."""
        return rate(images.shape[0] for images, _ in self._loader)


class Ours:
    def __init__(self, folder: Path, threads: int, filter: str = "antialias") -> None:
        augment = Augment(size=SIDE, mirror=True, filter=filter)  # type: ignore[arg-type]
        split = Folder(path=str(folder)).open("train")
        self._steps = len(split.labels) // BATCH
        cut = Cut(Span(self._steps * BATCH, BATCH), 1, 0)
        self._batches, self._first = Batches(split, augment, cut, decoders=threads), 0

    def epoch(self) -> float:
        first, self._first = self._first, self._first + self._steps
        return rate(batches[0].images.shape[0] for batches in self._batches.steps(first, self._first))


def rate(counts: Iterable[int]) -> float:
    began = time.perf_counter()
    images = sum(counts)
    return images / (time.perf_counter() - began)


def loaders(folder: Path, rounds: int) -> None:
    """Whole loaders on all cores, in turns."""
    theirs = {workers: Loader(folder, workers) for workers in range(1, 5)}
    ours = {"default": Ours(folder, cores()), "1 thread": Ours(folder, 1), "linear": Ours(folder, cores(), "linear")}
    seen: dict[object, list[float]] = {name: [] for name in (*theirs, *ours)}
    for turn in range(rounds + 1):
        for name, loader in (*theirs.items(), *ours.items()):
            got = loader.epoch()
            if turn:  # the first starts the workers
                seen[name].append(got)
    for name, rates in seen.items():
        what = f"DataLoader, {name} workers" if isinstance(name, int) else f"shoal, {name}"
        print(f"{what}: {statistics.median(rates):.0f} images/s ({min(rates):.0f} to {max(rates):.0f}, n = {rounds})")
    best = max(theirs, key=lambda workers: statistics.median(seen[workers]))
    ratio = statistics.median(a / b for a, b in zip(seen["default"], seen[best], strict=True))
    verdict(f"default / DataLoader with {best} workers", ratio, ">= 1.6", ratio >= 1.6)
    ratio = statistics.median(a / b / cores() for a, b in zip(seen["default"], seen["1 thread"], strict=True))
    verdict(f"default on {cores()} threads / {cores()} x on one", ratio, ">= 0.85", ratio >= 0.85)


def small(rounds: int) -> None:
    """Crops, mirroring and normalising of 32 px images in memory: one thread makes batches, one normalises them."""
    count, batch = 49_920, 512
    images = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), np.uint8)
    held = Held(images, np.zeros(count, np.int64), ("a",), mean=MEAN, std=STD)
    batches = Batches(held, Augment(pad=4, crop=32, mirror=True), Cut(Span(count, batch), 1, 0))
    inputs, steps = Inputs(MEAN, STD, torch.float32, torch.device("cpu")), count // batch

    def ready(first: int):
        for made in batches.steps(first, first + steps):
            inputs(made[0].images)
            yield len(made[0].labels)

    rates = [rate(ready(turn * steps)) for turn in range(rounds)]
    middle = statistics.median(rates)
    print(f"32 px: {middle:,.0f} images/s ({min(rates):,.0f} to {max(rates):,.0f}, n = {rounds})")
    verdict("32 px, pad 4, crop, mirror, normalise: thousand images/s", middle / 1e3, ">= 100", middle >= 1e5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(machine())
    with tempfile.TemporaryDirectory() as place:
        folder, images = unpacked(Path(place), COPIES)
        per_core(images, rounds)
        loaders(folder, rounds)
    small(rounds)
    finish()


if __name__ == "__main__":
    main()
