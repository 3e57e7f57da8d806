"""Packing: image files as MXNet's RecordIO, or flat ones as class folders; planned first, then written whole or not."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal.base.errors import ShoalError, UsageError, shown_path
from shoal.base.files import files_whole, folder_whole, sync_file
from shoal.base.host import cores
from shoal.data.encoded import read_file
from shoal.data.image import ImageError, decode
from shoal.data.labels import Label, Labels, read_labels
from shoal.data.recordio import Header, Writer, pack, sums_of
from shoal.data.source import SourceError
from shoal.data.sources.folder import classes_in, entries_of, images_in

LABEL_FILES = (
    "lines of `name label`, `name,label` (Caffe's val.txt), Kaggle's LOC_val_solution.csv, "
    "ILSVRC's validation_ground_truth.txt, MXNet's .lst"
)
_NOT_LINKED = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES}
"""Why a hard link cannot be made where a copy can."""


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

    dst: Path
    images: tuple[Picked, ...]
    classes: tuple[str, ...] | None
    """By label; None: numbers alone."""

    @property
    def records(self) -> bool:
        return self.dst.suffix == ".rec"


@dataclass(frozen=True)
class Packed:
    """What came of it."""

    images: int
    classes: int
    bad: int
    copied: int
    """Images that could not be linked."""


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
    return _of_labels(read, read.of(images, src), dst, known)


def _check_places(src: Path, dst: Path) -> None:
    if not src.is_dir():
        what = "is a file; SRC is a folder of images" if src.exists() else "no such folder (SRC)"
        raise UsageError(f"{shown_path(src)}: {what}")
    for path in _files(dst) if dst.suffix == ".rec" else (dst,):
        if os.path.lexists(path):
            raise UsageError(f"{shown_path(path)}: exists already; nothing is replaced: name another DST, or remove it")
    if dst.resolve().is_relative_to(src.resolve()):
        raise UsageError(f"{shown_path(dst)}: lies in SRC, which is never changed; name another DST")


def _of_folders(src: Path, dst: Path, known: tuple[str, ...] | None) -> Packing:
    """Images whose class folders say what they are."""
    folders = [entry.name for entry in entries_of(src) if entry.is_dir()]
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
    return Packing(dst, images, classes)


def _of_labels(labels: Labels, given: list[tuple[str, Label]], dst: Path, known: tuple[str, ...] | None) -> Packing:
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
    return Packing(dst, tuple(picked), classes)


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


# Writing


def write(
    packing: Packing,
    on_bad: Literal["stop", "skip"] = "stop",
    *,
    done: Callable[[int], None] = lambda count: None,
    told: Callable[[str], None] = lambda line: None,
) -> Packed:
    """Writes it, wholly or not at all. `done` hears how many images were looked at, `told` of each bad one.

    ShoalError: an image that cannot be decoded, unless such are to be skipped; a disk that takes no more.
    """
    good, bad = [], 0

    def checked() -> Iterator[tuple[Picked, bytes]]:
        nonlocal bad
        for count, (image, data) in enumerate(_checked(packing.images), 1):
            if isinstance(data, ImageError):
                bad += 1
                told(f"{shown_path(image.path)} {data}")
            elif not bad or on_bad == "skip":  # else nothing will be kept; the others are only looked at
                good.append(image.label)
                yield image, data
            done(count)
        if bad and on_bad == "stop":
            wrong = f"{bad:,} of {len(packing.images):,} images cannot be decoded"
            raise ShoalError(f"{wrong}; nothing was written: mend or remove them, or leave them out with --on-bad skip")
        if not good:
            raise ShoalError(f"none of {len(packing.images):,} images can be decoded; nothing was written")

    try:
        copied = (_write_records if packing.records else _write_folders)(packing, checked())
    except OSError as error:
        reason = error.strerror or str(error)
        raise ShoalError(f"{shown_path(packing.dst)}: cannot be written ({reason}); nothing was left there") from None
    return Packed(len(good), len(set(good)), bad, copied)


def _checked(images: tuple[Picked, ...]) -> Iterator[tuple[Picked, bytes | ImageError]]:
    """Each image's bytes, after they were decoded once, or why they cannot be; by threads, a few ahead."""

    def check(image: Picked) -> bytes | ImageError:
        try:
            data = read_file(image.path)
            decode(data)
            return data
        except ImageError as error:
            return error

    pool = ThreadPoolExecutor(cores(), "check")
    ahead: deque[tuple[Picked, Future[bytes | ImageError]]] = deque()
    try:
        for image in images:
            ahead.append((image, pool.submit(check, image)))
            if len(ahead) > 8 * cores():
                first, made = ahead.popleft()
                yield first, made.result()
        for first, made in ahead:
            yield first, made.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _files(rec: Path) -> tuple[Path, ...]:
    """What belongs to a .rec. It comes last: where it is, the others are."""
    return rec.with_suffix(".lst"), rec.with_suffix(".idx"), sums_of(rec), rec


def _write_records(packing: Packing, checked: Iterator[tuple[Picked, bytes]]) -> int:
    """A .rec of the bytes as they are, its .idx, and the .lst that names the classes."""
    with files_whole(*_files(packing.dst)) as aside:
        rec = aside / packing.dst.name
        with Writer(rec) as writer, open(rec.with_suffix(".lst"), "wb") as lst:
            for number, (image, data) in enumerate(checked):
                labels = (float(image.label), *image.more)
                writer.write(pack(Header(labels, number), data), number)
                folder = os.fsencode(packing.classes[image.label]) + b"/" if packing.classes else b""
                name = folder + os.fsencode(os.path.basename(image.path))
                columns = [b"%d" % number, *(b"%g" % label for label in labels), _one_line(name)]
                lst.write(b"\t".join(columns) + b"\n")
    return 0


def _write_folders(packing: Packing, checked: Iterator[tuple[Picked, bytes]]) -> int:
    """Class folders of hard links; of copies where links cannot be."""
    assert packing.classes is not None
    copied = 0
    with folder_whole(packing.dst) as aside:
        for image, _ in checked:
            folder = aside / packing.classes[image.label]
            folder.mkdir(exist_ok=True)
            new = folder / os.path.basename(image.path)
            old = os.path.realpath(image.path)  # of a link the file: links may lead elsewhere from here
            try:
                os.link(old, new)
            except OSError as error:
                if error.errno not in _NOT_LINKED:
                    raise
                shutil.copyfile(old, new)
                sync_file(new)
                copied += 1
    return copied


def _one_line(name: bytes) -> bytes:
    """A .lst has no way to write a tab or a line break; its names only tell people and name classes."""
    return name.replace(b"\t", b"?").replace(b"\n", b"?").replace(b"\r", b"?")
