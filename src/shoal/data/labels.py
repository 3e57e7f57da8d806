"""Label files: which image is of which class, in the forms that people have them.

- Caffe's val.txt and any other list of `name label` or `name,label`; a number is the place of a class among the names
  of the training folder's classes, from 0
- Kaggle's LOC_val_solution.csv: `ImageId,PredictionString`, the class and its boxes
- ILSVRC's validation_ground_truth.txt: line n is the ILSVRC number, from 1, of the class of the image whose name
  ends in n
- MXNet's .lst: `number TAB label(s) TAB path`
"""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass
from pathlib import Path

from shoal.base.errors import UsageError, shown_path
from shoal.data.source import SourceError

_HEADERS = {"image", "images", "imageid", "image_id", "id", "file", "filename", "file_name", "name", "path"}
_NUMBERED = re.compile(r"_(\d{8})\.[^.]+$")  # ILSVRC2012_val_00000001.JPEG
_MOST = 1 << 24  # a float32 label counts no further


@dataclass(frozen=True)
class Label:
    """What a label file says of one image."""

    line: int
    name: str
    """The image, as the file writes it."""
    label: str
    """The class: its name, or a number."""
    more: tuple[float, ...] = ()
    """Further labels, which only a .lst has."""


@dataclass(frozen=True)
class Labels:
    """A label file, read."""

    file: Path
    lines: tuple[Label, ...]
    numbers: bool
    """Every label is a number, and no name of a class."""

    def where(self, label: Label) -> str:
        return f"{shown_path(self.file)}:{label.line}"

    def of(self, images: dict[str, str], folder: Path) -> list[tuple[str, Label]]:
        """(Path, label) of every image, in the order of the file; images: path below `folder` -> path.

        SourceError: an image without a label, a label without an image, an image named twice.
        """
        names = _names(images)
        given: dict[str, Label] = {}
        missing: list[Label] = []
        for label in self.lines:
            found = names.get(label.name) or names.get(label.name.rpartition("/")[2]) or []
            if len(found) > 1:
                told = f"{self.where(label)}: {_shown(label.name)} may be any of {len(found)} images"
                raise SourceError(f"{told}, as {_shown(found[0])} and {_shown(found[1])}; write their paths below SRC")
            if not found:
                missing.append(label)
            elif found[0] in given:
                first = given[found[0]].line
                raise SourceError(f"{self.where(label)}: {_shown(label.name)} was named before, in line {first}")
            else:
                given[found[0]] = label
        if missing:
            told = f"{self.where(missing[0])}: no image {_shown(missing[0].name)} in {shown_path(folder)}"
            raise SourceError(told + _others(len(missing), "names"))
        if bare := [name for name in images if name not in given]:
            told = f"{shown_path(folder / bare[0])}: has no label in {shown_path(self.file)}"
            raise SourceError(told + _others(len(bare), "images"))
        return [(images[name], label) for name, label in given.items()]


def read_labels(file: Path, images: dict[str, str], synsets: Path | None = None) -> Labels:
    """SourceError names the line that is wrong. images: path below the folder of images -> path; synsets: of
    ILSVRC's own numbers, which need it."""
    rows = [(number, text) for number, text in enumerate(_lines(file), 1) if text.strip()]
    if not rows:
        raise SourceError(f"{shown_path(file)}: holds no labels")
    first = rows[0][1]
    bare = all(text.strip().isdecimal() for _, text in rows)
    if synsets is not None and not bare:
        raise UsageError(f"--synsets explains a file of one ILSVRC number per line; {shown_path(file)} is none")
    if bare:
        found = _ground_truth(file, rows, images, synsets)
    elif file.suffix == ".lst" or re.match(r"\d+\t\S+\t", first):
        found = [_of_lst(file, *row) for row in rows]
    elif [word.strip() for word in first.split(",")] == ["ImageId", "PredictionString"]:
        found = [_of_kaggle(file, *row) for row in rows[1:]]
    else:
        comma = "," in first
        found = [_of_list(file, *row, comma) for row in rows]
        if comma and found[0].name.lower() in _HEADERS:
            found = found[1:]
    return Labels(file, tuple(found), all(label.label.isdecimal() for label in found))


def _lines(file: Path) -> list[str]:
    """Bytes that are not UTF-8 as Python shows them in file names, so that the names are found."""
    try:
        return [
            os.fsdecode(line.rstrip(b"\r")) for line in file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
        ]
    except OSError as error:
        raise SourceError(f"{shown_path(file)}: cannot be read ({error.strerror})") from None


def _of_list(file: Path, number: int, text: str, comma: bool) -> Label:
    cells = next(csv.reader([text])) if comma else text.rsplit(None, 1)
    words = [cell.strip() for cell in cells]
    if len(words) != 2 or not all(words):
        raise _wrong(file, number, "name,label" if comma else "name label", text)
    return Label(number, words[0], words[1])


def _of_kaggle(file: Path, number: int, text: str) -> Label:
    name, _, told = text.partition(",")
    words = told.split()
    classes = set(words[::5])
    if not name.strip() or not words or len(words) % 5:
        raise _wrong(file, number, "ImageId,CLASS X Y X Y …", text)
    if len(classes) > 1:
        raise SourceError(f"{shown_path(file)}:{number}: {len(classes)} classes in one image; one label is needed")
    return Label(number, name.strip(), words[0])


def _of_lst(file: Path, number: int, text: str) -> Label:
    columns = text.split("\t")
    try:
        identity, first, *more, path = columns
        int(identity)
        label = float(first)
        if not (0 <= label < _MOST and label == int(label) and path):
            raise ValueError
        return Label(number, path.strip(), str(int(label)), tuple(float(word) for word in more))
    except (ValueError, OverflowError):
        raise _wrong(file, number, "number TAB class number TAB path", text) from None


def _ground_truth(file: Path, rows: list[tuple[int, str]], images: dict[str, str], synsets: Path | None) -> list[Label]:
    """One number per line says nothing of names or of the order of classes: both have to be certain."""
    if synsets is None:
        raise UsageError(
            f"{shown_path(file)}: one number per line, as ILSVRC's ground truth; its numbers follow ILSVRC's own order "
            "of classes, not that of their names: --synsets FILE names them (map_clsloc.txt of its development kit)"
        )
    names = _synsets(synsets)
    numbered: dict[int, str] = {}
    for name in images:
        found = _NUMBERED.search(name)
        if not found:
            raise SourceError(
                f"{shown_path(file)}: line n is of the image whose name ends in _0000000n, and {_shown(name)} does not"
                "; a list of `name label` lines would be certain"
            )
        numbered[int(found[1])] = name
    labels = []
    for number, text in rows:
        if int(text) not in names:
            raise SourceError(f"{shown_path(file)}:{number}: no class {text.strip()} in {shown_path(synsets)}")
        labels.append(Label(number, numbered.get(number, f"*_{number:08}.*"), names[int(text)]))
    return labels


def _synsets(file: Path) -> dict[int, str]:
    """ILSVRC's number -> class: lines of `CLASS NUMBER …`, or a class per line in ILSVRC's order."""
    rows = [(number, text.split()) for number, text in enumerate(_lines(file), 1) if text.strip()]
    if all(len(words) == 1 for _, words in rows):
        names = [words[0] for _, words in rows]
        if names == sorted(names):
            raise SourceError(
                f"{shown_path(file)}: its classes are in the order of their names, as Caffe's synsets.txt, which is "
                "not ILSVRC's; map_clsloc.txt of its development kit has lines of `CLASS NUMBER NAME`"
            )
        return dict(enumerate(names, 1))
    found: dict[int, str] = {}
    for number, words in rows:
        if len(words) < 2 or not words[1].isdecimal():
            raise _wrong(file, number, "CLASS NUMBER", " ".join(words))
        if int(words[1]) in found:
            raise SourceError(f"{shown_path(file)}:{number}: class {words[1]} was named before")
        found[int(words[1])] = words[0]
    return found


def _names(images: dict[str, str]) -> dict[str, list[str]]:
    """Every way to name an image: its path below the folder, its file's name, with its ending or without."""
    names: dict[str, list[str]] = {}
    for path in images:
        base = path.rpartition("/")[2]
        for name in {path, base, base.rpartition(".")[0]}:
            names.setdefault(name, []).append(path)
    return {name: [name] if name in images else paths for name, paths in names.items()}


def _wrong(file: Path, number: int, wanted: str, text: str) -> SourceError:
    return SourceError(f"{shown_path(file)}:{number}: expected `{wanted}`, got {shown_path(text[:60])!r}")


def _shown(name: str) -> str:
    return f"'{shown_path(name)}'"


def _others(count: int, what: str) -> str:
    return f" (nor for {count - 1:,} other {what})" if count > 1 else ""
