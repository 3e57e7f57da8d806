"""Packing: image files as MXNet's RecordIO, or flat ones as class folders: what goes where, before it is written."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.base.errors import UsageError, shown_path
from shoal.data.labels import Label, Labels, read_labels
from shoal.data.recoding import Recoding
from shoal.data.recordio import sums_of
from shoal.data.source import SourceError
from shoal.data.sources.folder import classes_in, entries_of, images_in, is_folder

LABEL_FILES = (
    "lines of `name label`, `name,label` (Caffe's val.txt), Kaggle's LOC_val_solution.csv, "
    "ILSVRC's validation_ground_truth.txt, MXNet's .lst"
)
SPLITS = ("train", "val", "test")
"""What the files of --splits are called after."""


@dataclass(frozen=True)
class Picked:
    """One image to be packed."""

    path: str
    label: int
    more: tuple[float, ...] = ()
    """Further labels, as only a .lst has them."""


@dataclass(frozen=True)
class Packing:
    """What is to be packed and where to: all that can be known before anything is written."""

    src: Path
    dst: Path
    images: tuple[Picked, ...]
    classes: tuple[str, ...] | None
    """By label; None: numbers alone."""
    recoding: Recoding | None = None
    """How images are made smaller on the way; None: their bytes stay as they are."""

    @property
    def records(self) -> bool:
        return self.dst.suffix == ".rec"

    @property
    def files(self) -> tuple[Path, ...]:
        """What belongs to a .rec. It comes last: where it is, the others are."""
        return _files(self.dst)

    def shuffled(self) -> Packing:
        """The same images in an order of their names' digests: mixed, and the same every time."""
        return replace(self, images=tuple(sorted(self.images, key=self._drawn)))

    def split(self, shares: Sequence[float]) -> tuple[Packing, ...]:
        """Each class's images dealt out by their names' digests: DST_train.rec, DST_val.rec, and of three DST_test.rec.
        The order stays. UsageError: shares that are none."""
        if len(shares) not in (2, 3) or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
            raise UsageError(
                f"--splits {','.join(f'{share:g}' for share in shares)}: expected two or three that make 1"
            )
        of_class: dict[int, list[Picked]] = defaultdict(list)
        for image in self.images:
            of_class[image.label].append(image)
        part: dict[str, int] = {}
        for images in of_class.values():
            # The first, which is trained on, has at least one image of each class.
            bounds = [max(1, round(sum(shares[: number + 1]) * len(images))) for number in range(len(shares))]
            for place, image in enumerate(sorted(images, key=self._drawn)):
                part[image.path] = next(number for number, bound in enumerate(bounds) if place < bound)
        parts = []
        for number, name in enumerate(SPLITS[: len(shares)]):
            dst = self.dst.with_name(f"{self.dst.stem}_{name}.rec")
            images = tuple(image for image in self.images if part[image.path] == number)
            if not images:
                raise UsageError(f"--splits: no image is left for {dst.name}; {len(self.images)} are too few")
            check_free(dst)
            parts.append(replace(self, dst=dst, images=images))
        return tuple(parts)

    def _drawn(self, image: Picked) -> bytes:
        return hashlib.blake2b(os.fsencode(os.path.relpath(image.path, self.src)), digest_size=16).digest()


# Planning


def plan(
    src: Path, dst: Path, labels: Path | None = None, classes: Path | None = None, synsets: Path | None = None
) -> Packing:
    """labels: a file, for images without class folders; classes: the training folder whose classes are meant; synsets:
    ILSVRC's numbers. UsageError, SourceError: what cannot be packed so."""
    _check_places(src, dst)
    if labels is None and synsets is not None:
        raise UsageError("--synsets explains the numbers of a label file: give it with --labels")
    known = classes_in(classes / "train" if (classes / "train").is_dir() else classes) if classes else None
    if labels is None:
        return _of_folders(src, dst, known)
    images = {os.path.relpath(path, src): path for path in images_in(src)}
    if not images:
        raise SourceError(f"{shown_path(src)}: holds no images")
    read = read_labels(labels, images, synsets)
    return _of_labels(read, read.of(images, src), src, dst, known)


def arranged(
    packing: Packing, recoding: Recoding | None = None, *, shuffle: bool = False, splits: Sequence[float] = ()
) -> tuple[Packing, ...]:
    """The same images made smaller, mixed, or dealt out to several files. UsageError: what cannot be."""
    if not packing.records and (recoding or shuffle or splits):
        raise UsageError(
            f"{shown_path(packing.dst)}: --resize, --shuffle and --splits are for a DST that ends in .rec; a folder "
            "holds the files themselves"
        )
    packing = replace(packing, recoding=recoding)
    packing = packing.shuffled() if shuffle else packing
    return packing.split(splits) if splits else (packing,)


def _check_places(src: Path, dst: Path) -> None:
    if not src.is_dir():
        what = "is a file; SRC is a folder of images" if src.exists() else "no such folder (SRC)"
        raise UsageError(f"{shown_path(src)}: {what}")
    check_free(dst)
    if dst.resolve().is_relative_to(src.resolve()):
        raise UsageError(f"{shown_path(dst)}: lies in SRC, which is never changed; name another DST")


def _files(dst: Path) -> tuple[Path, ...]:
    return dst.with_suffix(".lst"), dst.with_suffix(".idx"), sums_of(dst), dst


def check_free(dst: Path) -> None:
    """UsageError: something lies where DST, or what belongs to it, is to lie."""
    for path in _files(dst) if dst.suffix == ".rec" else (dst,):
        if os.path.lexists(path):
            raise UsageError(f"{shown_path(path)}: exists already; nothing is replaced: name another DST, or remove it")


def _of_folders(src: Path, dst: Path, known: tuple[str, ...] | None) -> Packing:
    """Images whose class folders say what they are."""
    folders = [entry.name for entry in entries_of(src) if is_folder(entry)]
    if not folders and images_in(src):
        raise UsageError(
            f"{shown_path(src)}: its images lie flat, and nothing says of which class they are; --labels FILE does: "
            + LABEL_FILES
        )
    if "train" in folders:
        train, rec = shlex.quote(shown_path(src / "train")), shlex.quote(shown_path(dst.with_suffix("")))
        val = shlex.quote(shown_path(src / "val"))
        raise UsageError(
            f"{shown_path(src)}: holds train and val; pack each: shoal data pack {train} {rec}_train.rec, then "
            f"shoal data pack {val} {rec}_val.rec --classes {train}"
        )
    found = classes_in(src)
    if dst.suffix != ".rec":
        raise UsageError(f"{shown_path(src)}: has class folders already; a DST that ends in .rec packs them")
    classes = known or found
    if unknown := [name for name in found if name not in classes]:
        raise SourceError(f"{shown_path(src / unknown[0])}: no class of this name in the folder of --classes")
    place = {name: number for number, name in enumerate(classes)}
    images = tuple(Picked(path, place[name]) for name in found for path in images_in(src / name))
    if not images:
        raise SourceError(f"{shown_path(src)}: holds no images")
    return Packing(src, dst, images, classes)


def _of_labels(
    labels: Labels, given: list[tuple[str, Label]], src: Path, dst: Path, known: tuple[str, ...] | None
) -> Packing:
    # Class folders may be called 0, 1, 10 …: a label that is the name of a class means that class.
    by_number = labels.numbers and not (known and all(label.label in known for label in labels.lines))
    classes = known if known or by_number else tuple(sorted({one.label for _, one in given}, key=os.fsencode))
    if by_number and classes is None and dst.suffix != ".rec":
        raise UsageError(
            f"{shown_path(labels.file)}: its labels are numbers, and class folders need names: "
            "--classes TRAINFOLDER has them"
        )
    place = {name: number for number, name in enumerate(classes or ())}
    picked = []
    for path, label in given:
        number = int(label.label) if by_number else place.get(label.label, -1)
        if number < 0 or (classes is not None and number >= len(classes)):
            raise SourceError(
                f"{labels.where(label)}: no class {shown_path(label.label)!r} in the folder of --classes, which has "
                f"{len(classes or ())} classes"
            )
        picked.append(Picked(path, number, label.more))
    if dst.suffix != ".rec":
        assert classes is not None
        _check_folders(labels, given, classes)
    return Packing(src, dst, tuple(picked), classes)


def _check_folders(labels: Labels, given: list[tuple[str, Label]], classes: tuple[str, ...]) -> None:
    """That names of classes can be names of folders, and no image takes another's place."""
    for name in classes:
        if "/" in name or "\0" in name or name.startswith("."):
            raise SourceError(f"{shown_path(labels.file)}: class {shown_path(name)!r} cannot be the name of a folder")
    seen: dict[tuple[str, str], str] = {}
    for path, label in given:
        if label.more:
            raise UsageError(f"{labels.where(label)}: several labels, and a folder is of one class; name a DST.rec")
        other = seen.setdefault((label.label, os.path.basename(path)), path)
        if other != path:
            raise SourceError(f"{shown_path(path)}: {shown_path(other)} has the same name and class; rename one")
