"""What lies at a path, as Shoal's sources would read it; what is wrong with it, and what mends it. Decodes nothing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shoal.base.errors import shown_path
from shoal.data.encoded import train_or_val
from shoal.data.labels import read_labels
from shoal.data.source import SourceError, Split
from shoal.data.sources.cifar10 import Cifar10, form_at
from shoal.data.sources.folder import ENDINGS, by_class, classes_in, entries_of, is_folder, sorted_by
from shoal.data.sources.recordio import Recordio
from shoal.data.tree import tree

NONE = "(no class)"
"""In place of a class: images without a label."""
VAL_SHARE = 0.2
"""Of the training images, where there are no others to validate on."""
SPLITS: tuple[Split, Split] = ("train", "val")


@dataclass(frozen=True)
class Part:
    """The images of one split, or of a file or folder that is not one of two."""

    name: str
    path: str
    classes: dict[str, int]
    """Class -> images, in the order of the labels."""

    @property
    def images(self) -> int:
        return sum(self.classes.values())


@dataclass
class Found:
    """What lies at a path."""

    path: str
    form: str = ""
    parts: list[Part] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    mend: list[str] = field(default_factory=list)
    """Commands."""
    data: dict[str, Any] | None = None
    """Keys of a recipe's `data:` that read it."""

    def try_part(self, read: Callable[[], Part]) -> Part | None:
        """What `read` returns as a part, or what it raises as what is wrong."""
        try:
            self.parts.append(read())
            return self.parts[-1]
        except SourceError as error:
            if str(error) not in self.wrong:
                self.wrong.append(str(error))
            return None


def look(path: Path) -> Found:
    """SourceError: nothing is there that Shoal reads."""
    found = Found(shown_path(path))
    if not path.exists():
        raise SourceError(f"{found.path}: no such file or folder")
    if form := form_at(path):
        _cifar10(found, form)
    elif path.is_dir():
        if any(path.glob("*.rec")):
            _pair(found, path)
        else:
            _folders(found, path)
    elif path.suffix == ".rec":
        _rec(found, path)
    elif path.suffix == ".lst":
        _lst(found, path)
    else:
        raise SourceError(f"{found.path}: is no folder, .rec, .lst or archive of CIFAR-10")
    return found


def _cifar10(found: Found, form: str) -> None:
    found.form = f"CIFAR-10, {form}"
    source = Cifar10(path=found.path)

    def read(split: Split) -> Part:
        held = source.open(split)
        counts = Counter(held.labels.tolist())
        return Part(split, found.path, {name: counts[number] for number, name in enumerate(held.classes)})

    for split in SPLITS:
        found.try_part(lambda split=split: read(split))
    found.data = {"name": "cifar10", "path": found.path}


# RecordIO


def _pair(found: Found, folder: Path) -> None:
    found.form = "MXNet's RecordIO, a folder of .rec files"
    files = {}
    for split in SPLITS:
        try:
            files[split] = train_or_val(folder, split)
        except SourceError as error:
            found.wrong.append(str(error))
    for split, file in files.items():
        part = found.try_part(lambda split=split, file=file: _records(file, split, files.get("train", file)))
        if part and found.parts[0] is not part:
            for label in part.classes.keys() - found.parts[0].classes.keys() - {NONE}:
                found.wrong.append(f"{part.path}: label {label} is no class of {found.parts[0].path}")
    if not files:  # no split can be told from the names: each file for itself
        for file in sorted(folder.glob("*.rec")):
            found.try_part(lambda file=file: _records(file, file.stem, file))
    name = "cifar10" if all("cifar10" in file.stem for file in files.values()) else "recordio"
    if len(files) == 2:
        found.data = {"name": name, "path": found.path}


def _rec(found: Found, file: Path) -> None:
    beside = [ending for ending in (".idx", ".lst") if file.with_suffix(ending).is_file()]
    without = " and ".join(beside) if beside else "nothing"
    found.form = f"MXNet's RecordIO, one .rec with {without} beside it"
    found.try_part(lambda: _records(file, "images", file))
    found.data = {"name": "recordio", "path": found.path, "val": "VAL.rec"}


def _records(file: Path, name: str, train: Path) -> Part:
    source = Recordio(path=str(train), val=str(file))
    labels, classes = source.labels_and_classes("val")
    counts = Counter(labels.tolist())
    held = {label: counts[number] for number, label in enumerate(classes)}
    if counts[-1]:
        held[NONE] = counts[-1]
    for number in sorted(number for number in counts if number >= len(classes)):
        held[str(number)] = counts[number]
    return Part(name, shown_path(file), held)


def _lst(found: Found, file: Path) -> None:
    found.form = "MXNet's list of images (.lst)"

    def read() -> Part:
        counts = Counter(int(label.label) for label in read_labels(file, {}).lines)
        return Part("images", found.path, {str(number): counts[number] for number in sorted(counts)})

    found.try_part(read)
    rec = file.with_suffix(".rec")
    if rec.is_file():
        found.data = {"name": "recordio", "path": shown_path(rec), "val": "VAL.rec"}
    else:
        found.wrong.append(f"{shown_path(rec)}: no such file; the list names images and holds none")
        found.mend.append(f"shoal data pack FOLDER {shown_path(rec.name)} --labels {found.path}")


# Folders


def _folders(found: Found, path: Path) -> None:
    inside = {entry.name for entry in entries_of(path) if is_folder(entry)}
    if not inside and not _loose(path):
        raise SourceError(f"{found.path}: holds no images ({', '.join(ENDINGS)}), no class folders and no .rec")
    if "train" in inside:
        both = "val" in inside
        found.form = "class folders below train" + (" and val, as ImageNet's" if both else "; no validation folder")
        train = found.try_part(lambda: _classes(found, path / "train", "train", None))
        if both:
            found.try_part(lambda: _classes(found, path / "val", "val", path / "train", train))
            found.data = {"name": "folder", "path": found.path}
            if found.mend:
                found.data["val"] = by_class(path / "val")
        else:
            found.data = {"name": "folder", "path": found.path, "val_share": VAL_SHARE}
    elif inside:
        found.form = "class folders; no validation folder"
        found.try_part(lambda: _classes(found, path, "images", None))
        found.data = {"name": "folder", "path": found.path, "val_share": VAL_SHARE}
    else:
        found.form = "images without class folders"
        found.try_part(lambda: _classes(found, path, "images", None))


def _classes(found: Found, root: Path, name: str, train: Path | None, known: Part | None = None) -> Part:
    """The images of each class folder. Flat images are one part without classes, and something to mend."""
    if not any(is_folder(entry) and not entry.name.startswith(".") for entry in entries_of(root)) and _loose(root):
        found.wrong.append(f"{shown_path(root)}: {_loose(root):,} images lie flat in it, without class folders")
        found.mend.append(sorted_by(root, train))
        return Part(name, shown_path(root), {NONE: _loose(root)})
    listed = tree(str(root))
    of, folders = listed.class_of(), listed.classes or classes_in(root)
    images = np.bincount(of[of >= 0], minlength=len(folders))
    counts = {shown_path(folder): int(count) for folder, count in zip(folders, images, strict=True)}
    empty = [folder for folder, count in counts.items() if not count]
    if empty:
        more = f", and {len(empty) - 1} more" if len(empty) > 1 else ""
        found.wrong.append(f"{shown_path(root)}: no images in class folder {empty[0]}{more}")
    if known and (unknown := [folder for folder in counts if folder not in known.classes]):
        more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        found.wrong.append(f"{shown_path(root)}: no class {unknown[0]}{more} in {known.path}")
    return Part(name, shown_path(root), counts)


def _loose(folder: Path) -> int:
    """Image files right in a folder."""
    return sum(os.path.splitext(entry.name)[1].lower() in ENDINGS for entry in entries_of(folder))
