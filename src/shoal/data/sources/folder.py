from __future__ import annotations

import hashlib
import os
import shlex
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from shoal.base.errors import shown_path
from shoal.data.encoded import YourImages, read_file
from shoal.data.source import NO_LABEL, Held, SourceError, Split, Streamed

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
"""Files that are images, whatever the case of the letters."""


class Folder(YourImages, frozen=True, kw_only=True):
    """Image files in one sub-folder per class: `path`/train and `path`/val, as ImageNet's; or `path` and `val`.

    Classes are the sub-folders of the training folder in the order of their names. With `limit` images are taken from
    all classes by turns; those without a label are a class in this.
    """

    name: Literal["folder"] = "folder"
    val_share: Annotated[float, Meta(gt=0, lt=1)] | None = None
    """Where there is no validation folder: the part of each class's training images that is kept for validation
    instead, chosen by their names; absent: a validation folder is needed."""
    unlabelled: str | None = None
    """A folder of further training images, of any depth, of which nobody knows the class: a task with a teacher learns
    from them beside the others; absent: none."""

    def open(self, split: Split) -> Held | Streamed:
        import numpy as np

        classes = classes_in(self._root("train"))
        shares = self._shares()
        root = self._root("train" if shares else split)
        found = classes if split == "train" else classes_in(root, self._root("train"))
        if unknown := sorted(set(found) - set(classes)):
            raise SourceError(
                f"{shown_path(root / unknown[0])}: no class of this name in {shown_path(self._root('train'))}"
                + (f" (nor of {len(unknown) - 1} others)" if len(unknown) > 1 else "")
            )
        files, labels = [], []
        for name in found:
            images = images_in(root / name)
            if not images and self.on_bad == "stop":
                raise SourceError(
                    f"{shown_path(root / name)}: a class folder without images ({', '.join(ENDINGS)}); "
                    "remove it, or data.on_bad=skip keeps the class all the same"
                )
            if shares:
                images = self._shared(images, root, split)
            files += images
            labels += [classes.index(name)] * len(images)
        if split == "train" and self.unlabelled is not None:
            more = self._more()
            files, labels = files + more, labels + [NO_LABEL] * len(more)
        order = np.arange(len(files))
        if self.limit:
            turn = np.concatenate([np.arange(len(list(same))) for _, same in groupby(labels)])
            order = np.lexsort((np.array(labels) % (len(classes) + 1), turn))

        def read(index: int) -> bytes:
            return read_file(files[order[index]])

        def where(index: int) -> str:
            return shown_path(files[order[index]])

        return self.split(read, where, np.array(labels, np.int64)[order], tuple(shown_path(name) for name in classes))

    def _more(self) -> list[str]:
        """The images without labels."""
        folder = Path(self.unlabelled or "")
        if not folder.is_dir():
            raise SourceError(f"{shown_path(folder)}: no such folder (data.unlabelled)")
        found = images_in(folder)
        if not found:
            raise SourceError(f"{shown_path(folder)}: holds no images (data.unlabelled; {', '.join(ENDINGS)})")
        return found

    def _shares(self) -> bool:
        """Whether validation images are taken from the training folder."""
        return self.val_share is not None and self.val is None and not (Path(self.path) / "val").is_dir()

    def _shared(self, images: list[str], root: Path, split: Split) -> list[str]:
        """A class's images that belong to `split`, in their order: the same on every host, whatever the seed."""
        count = min(max(1, round((self.val_share or 0) * len(images))), len(images) - 1)

        def drawn(path: str) -> bytes:
            return hashlib.blake2b(os.fsencode(os.path.relpath(path, root))).digest()

        kept = set(sorted(images, key=drawn)[: max(count, 0)])
        return [image for image in images if (image in kept) == (split == "val")]

    def _root(self, split: Split) -> Path:
        """The folder that holds the class folders of a split."""
        path = Path(self.path)
        if not path.is_dir():
            what = "is a file; data.path names a folder" if path.exists() else "no such folder (data.path)"
            raise SourceError(f"{shown_path(path)}: {what} with one sub-folder of images per class")
        if split == "train":
            return path / "train" if (path / "train").is_dir() else path
        root = Path(self.val) if self.val is not None else path / "val"
        if not root.is_dir():
            what = "no such folder" if self.val is not None else "no such folder, and data.val names none"
            raise SourceError(
                f"{shown_path(root)}: {what}; validation images are needed, one sub-folder per class; "
                "data.val_share=0.2 keeps a fifth of the training images for it"
            )
        return root


def classes_in(root: Path, train: Path | None = None) -> tuple[str, ...]:
    """Names of the class folders, in the order of their bytes, so that it is the same under every locale.

    `train`: the training folder that a validation folder belongs to.
    """
    entries = entries_of(root)
    folders = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    if folders:
        return tuple(sorted(folders, key=os.fsencode))
    loose = sum(entry.name.lower().endswith(ENDINGS) for entry in entries)
    if not loose:
        raise SourceError(f"{shown_path(root)}: holds no class folders; expected one sub-folder of images per class")
    raise SourceError(
        f"{shown_path(root)}: {loose:,} images lie flat in it, without class folders, as ImageNet's validation archive "
        f"unpacks; with a list of their labels, {sorted_by(root, train)} makes a folder with class folders beside it"
    )


def sorted_by(root: Path, train: Path | None = None) -> str:
    """The command that mends a flat folder."""
    words = ["shoal data pack", shlex.quote(shown_path(root)), shlex.quote(by_class(root))]
    return " ".join([*words, "--labels FILE", *(["--classes", shlex.quote(shown_path(train))] if train else [])])


def by_class(root: Path) -> str:
    """Where that command puts the class folders."""
    return shown_path(f"{root}-by-class")


def images_in(folder: Path) -> list[str]:
    """Paths of the images in a class folder and below it, in the order of their bytes."""
    found: list[str] = []
    for entry in sorted(entries_of(folder), key=lambda entry: os.fsencode(entry.name)):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            found += images_in(Path(entry.path))
        elif entry.name.lower().endswith(ENDINGS):
            found.append(entry.path)
    return found


def entries_of(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise SourceError(f"{shown_path(folder)}: cannot be listed ({error.strerror})") from None
