"""Small image files in every form that a source reads, made from numbers; and where the real ones are, if they are."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shoal.data.recordio import Header, Writer, pack

REAL = Path(os.environ.get("SHOAL_TEST_DATA") or Path(__file__).parents[1] / "../shared/data")
"""The folder of cifar10_train.rec, cifar10_val.rec and imagenet_sample.tar."""


def real(name: str) -> Path:
    """A file of the real data; the test is skipped where there is none."""
    if not (REAL / name).is_file():
        pytest.skip(f"no {name} in {REAL} (SHOAL_TEST_DATA names another folder)")
    return REAL / name


def picture(number: int, height: int = 32, width: int | None = None) -> np.ndarray:
    """uint8 [H, W, 3], smooth enough for JPEG, different for each number."""
    rows, columns = np.mgrid[:height, : width or height]
    waves = [np.sin(rows * (0.1 + 0.03 * number) + c) + np.cos(columns * (0.2 + 0.01 * number * c)) for c in range(3)]
    return (127.5 + 60 * np.stack(waves, -1)).astype(np.uint8)


def encoded(image: np.ndarray | Image.Image, form: str = "PNG", **options: object) -> bytes:
    held = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(held, form, **options)
    return held.getvalue()


def jpeg(number: int, height: int = 32, width: int | None = None) -> bytes:
    return encoded(picture(number, height, width), "JPEG", quality=90)


def write_rec(path: Path, images: list[bytes], labels: list[float | tuple[float, ...]], *, index: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with Writer(path) as writer:
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            writer.write(pack(Header(label if isinstance(label, tuple) else (label,), number), image))
    if not index:
        path.with_suffix(".idx").unlink()
    return path


def rec_pair(folder: Path, train: int = 60, val: int = 30, *, sizes: tuple[int, ...] = (32,)) -> Path:
    """*train*.rec and *val*.rec of ten classes; the sizes by turns."""
    for split, first, count in (("train", 0, train), ("val", 1000, val)):
        images = [jpeg(first + number, sizes[number % len(sizes)]) for number in range(count)]
        write_rec(folder / f"some_{split}.rec", images, [number * 7 % 10 for number in range(count)])
    return folder


def class_folders(
    folder: Path, counts: dict[str, int], *, sizes: tuple[tuple[int, int], ...] = ((40, 50), (60, 36))
) -> Path:
    """A sub-folder of images per class: name -> how many; the sizes by turns."""
    for place, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            height, width = sizes[number % len(sizes)]
            (folder / name / f"{number:03}.jpg").write_bytes(jpeg(100 * place + number, height, width))
    return folder


def cifar_rows(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [n, 3072], labels [n]."""
    stream = np.random.default_rng(seed)
    return stream.integers(0, 256, (count, 3072), np.uint8), np.arange(seed, seed + count) % 10


def cifar_files(count: int = 12, *, binary: bool = False) -> dict[str, bytes]:
    """File name -> bytes of a small CIFAR-10: five training batches and a test batch of `count` images each."""
    files = {}
    for seed, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        images, labels = cifar_rows(seed, count)
        if binary:
            files[f"{name}.bin"] = np.column_stack([labels.astype(np.uint8), images]).tobytes()
        else:
            held = {"batch_label": name, "labels": labels.tolist(), "data": images, "filenames": ["x.png"] * count}
            files[name] = pickle.dumps(held, protocol=2)
    return files


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder
