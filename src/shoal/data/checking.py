"""Checking: every image of both splits read and decoded once; what is damaged, double, or not as the others."""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.host import cores
from shoal.data.image import decode, form_of
from shoal.data.look import SPLITS, Found, look
from shoal.data.recordio import opened
from shoal.data.source import Split
from shoal.recipe.check import Fault, part

_SOME = 64
"""Images that a thread looks at before it asks for more."""
_DIGEST = 16  # bytes


@dataclass
class Checked:
    """One split, image by image."""

    name: str
    images: int = 0
    nbytes: int = 0
    forms: Counter[str] = field(default_factory=Counter)
    """JPEG, colour; PNG, palette …: how many."""
    heights: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    """16 bytes of each image; of one that is bad, none."""
    bad: list[str] = field(default_factory=list)
    """Where, and what is wrong."""

    @property
    def sizes(self) -> str:
        """Pixels, of those that could be decoded."""
        if not self.heights:
            return "none"
        median = f"{statistics.median_low(self.widths)} x {statistics.median_low(self.heights)}"
        if min(self.heights) == max(self.heights) and min(self.widths) == max(self.widths):
            return median
        smallest, largest = f"{min(self.widths)} x {min(self.heights)}", f"{max(self.widths)} x {max(self.heights)}"
        return f"{median} (sides from {smallest} to {largest})"


@dataclass
class Check:
    """What became of it."""

    found: Found
    splits: list[Checked] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """What is wrong with the whole; `bad` of a split is about single images."""
    notes: list[str] = field(default_factory=list)
    """What a person should know, though it may be meant so."""

    @property
    def well(self) -> bool:
        return not self.wrong and not any(split.bad for split in self.splits)


def check(
    path: Path,
    threads: int | None = None,
    *,
    begun: Callable[[int], None] = lambda count: None,
    done: Callable[[int], None] = lambda count: None,
    told: Callable[[str], None] = lambda line: None,
) -> Check:
    """Everything below `path`. `begun` hears how many images there are, `done` how many were looked at, `told` of each
    bad one. ShoalError: nothing is there that Shoal reads."""
    found = look(path)
    result = Check(found, wrong=list(found.wrong))
    splits = {split: images for split in SPLITS if (images := _opened(result, split)) is not None}
    begun(sum(len(images.labels) for images in splits.values()))
    looked = 0
    for split, images in splits.items():
        checked = Checked(split)
        _look_at(checked, images, threads or cores(), told, lambda count, before=looked: done(before + count))
        result.splits.append(checked)
        looked += checked.images
    for one in found.parts:
        if one.path.endswith(".rec"):
            result.wrong += _damage(Path(one.path))
    _doubles(result, splits)
    return result


def _opened(result: Check, split: Split) -> Any:
    """A split with its images as they lie there, not yet decoded; None where it cannot be opened."""
    data = result.found.data
    if data is None:
        return None
    single = result.found.parts and result.found.parts[0].name not in SPLITS
    if single and split == "val":
        return None
    keys = {key: value for key, value in data.items() if key != "val_share"}
    if single and keys.get("name") == "recordio":
        keys["val"] = keys["path"]
    try:
        faults: list[Fault] = []
        source = part("sources", keys, ("data",), faults)
        if hasattr(source, "cache"):
            source = msgspec.structs.replace(source, cache="none")
        return source.open(split)
    except ShoalError as error:
        if str(error) not in result.wrong and not (split == "val" and "val_share" in data):
            result.wrong.append(str(error))
        return None


def _look_at(
    checked: Checked, images: Any, threads: int, told: Callable[[str], None], done: Callable[[int], None]
) -> None:
    encoded = not hasattr(images, "pixels")

    def one(index: int) -> tuple[bytes, str, tuple[int, ...], str]:
        """(bytes, form, height and width, what is wrong) of an image."""
        if not encoded:
            held = images.pixels([index])[0]
            return held.tobytes(), "pixels", held.shape[1:], ""
        data = b""
        try:
            data = bytes(images.read(index))
            shape = tuple(decode(data).shape[1:])
            return data, form_of(data), shape, ""
        except ShoalError as error:
            return data, "", (), str(error)

    def some(low: int) -> list[tuple[int, bytes, str, tuple[int, ...], str]]:
        """The same, with the number of bytes and their digest."""
        made = []
        for index in range(low, min(low + _SOME, len(images.labels))):
            data, form, shape, wrong = one(index)
            digest = b"" if wrong else hashlib.blake2b(data, digest_size=_DIGEST).digest()
            made.append((len(data), digest, form, shape, wrong))
        return made

    with ThreadPoolExecutor(threads, "check") as pool:
        for made in pool.map(some, range(0, len(images.labels), _SOME)):
            for nbytes, digest, form, shape, wrong in made:
                if wrong:
                    where = images.where(checked.images)
                    checked.bad.append(wrong if wrong.startswith(where) else f"{where} {wrong}")
                    told(checked.bad[-1])
                else:
                    checked.forms[form] += 1
                    checked.heights.append(shape[0])
                    checked.widths.append(shape[1])
                checked.digests.append(digest)
                checked.nbytes += nbytes
                checked.images += 1
            done(checked.images)


def _doubles(result: Check, splits: Mapping[str, Any]) -> None:
    """Images that are there twice: in both splits, under two labels, or in one split."""
    digests = np.array([digest for split in result.splits for digest in split.digests], f"S{_DIGEST}")
    number = np.concatenate([np.full(split.images, place) for place, split in enumerate(result.splits)] or [[]])
    index = np.concatenate([np.arange(split.images) for split in result.splits] or [[]]).astype(int)
    label = np.concatenate([images.labels for images in splits.values()] or [[]])

    def where(place: int) -> str:
        images = splits[result.splits[int(number[place])].name]
        return images.where(int(index[place])) if hasattr(images, "where") else f"image {index[place]}"

    order = np.argsort(digests, kind="stable")
    same = (digests[order][1:] == digests[order][:-1]) & (digests[order][1:] != b"")
    one, other = order[:-1][same], order[1:][same]
    across, labelled = number[one] != number[other], label[one] != label[other]
    for which, said in (
        (across, "images in both splits, so that validation sees what was trained on"),
        (labelled, "images with two labels"),
    ):
        if which.any():
            first, second = int(one[which][0]), int(other[which][0])
            result.wrong.append(
                f"{said}: {int(which.sum()):,}; the first: {where(first)} (label {label[first]}) and "
                f"{where(second)} (label {label[second]})"
            )
    if again := int((~across & ~labelled).sum()):
        result.notes.append(f"images that are more than once in a split, under the same label: {again:,}")


def _damage(rec: Path) -> list[str]:
    """Records whose bytes are not those that were packed, by the sums beside the .rec, where there are some."""
    try:
        return opened(rec).damage()
    except ShoalError as error:
        return [str(error)]
