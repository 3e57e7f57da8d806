from __future__ import annotations

import hashlib
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from shoal.base.errors import shown_path
from shoal.data.encoded import YourImages, file_size, read_file
from shoal.data.source import NO_LABEL, Encoded, Pixels, SourceError, Split

if TYPE_CHECKING:
    import numpy as np

    from shoal.data.tree import Tree

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

    def open(self, split: Split) -> Pixels | Encoded:
        import numpy as np

        from shoal.data.tree import tree

        shares, train = self._shares(), self._root("train")
        root = train if shares else self._root(split)
        listed = tree(str(root))
        found = listed.classes or classes_in(root, train if split == "val" else None)
        classes = found if root == train else classes_in(train)
        numbers = {name: number for number, name in enumerate(classes)}
        if unknown := [name for name in found if name not in numbers]:
            raise SourceError(
                f"{shown_path(root / unknown[0])}: no class of this name in {shown_path(train)}"
                + (f" (nor of {len(unknown) - 1} others)" if len(unknown) > 1 else "")
            )
        of = listed.class_of()
        empty = np.bincount(of[of >= 0], minlength=len(found)) == 0
        if empty.any() and self.on_bad == "stop":
            raise SourceError(
                f"{shown_path(root / found[empty.argmax()])}: a class folder without images ({', '.join(ENDINGS)}); "
                "remove it, or data.on_bad=skip keeps the class all the same"
            )
        taken = np.flatnonzero((of >= 0) & (self._kept_apart(listed, of) == (split == "val")) if shares else of >= 0)
        labels = np.array([numbers[name] for name in found], np.int64)[of[taken]]
        more = self._more(self.unlabelled) if split == "train" and self.unlabelled is not None else None
        if more is not None:
            taken = np.append(taken, len(listed) + np.arange(len(more)))
            labels = np.append(labels, np.full(len(more), NO_LABEL))
        if self.limit:
            by_turns = np.lexsort((labels % (len(classes) + 1), _turns(labels)))[: self.limit]
            taken, labels = taken[by_turns], labels[by_turns]

        def path(index: int) -> str:
            number = int(taken[index])
            return listed[number] if more is None or number < len(listed) else more[number - len(listed)]

        def read(index: int) -> bytes:
            return read_file(path(index), listed=True)

        def where(index: int) -> str:
            return shown_path(path(index))

        def nbytes(index: int) -> int:
            return file_size(path(index))

        names = tuple(shown_path(name) for name in classes)
        version = listed.stamps.tolist(), more.stamps.tolist() if more else None
        return self.split(read, where, labels, names, nbytes=nbytes, version=version)

    def _more(self, folder: str) -> Tree:
        """The images without labels."""
        from shoal.data.tree import tree

        if not Path(folder).is_dir():
            raise SourceError(f"{shown_path(folder)}: no such folder (data.unlabelled)")
        found = tree(folder)
        if not len(found):
            raise SourceError(f"{shown_path(folder)}: holds no images (data.unlabelled; {', '.join(ENDINGS)})")
        return found

    def _shares(self) -> bool:
        """Whether validation images are taken from the training folder."""
        return self.val_share is not None and self.val is None and not (Path(self.path) / "val").is_dir()

    def _kept_apart(self, listed: Tree, of: np.ndarray) -> np.ndarray:
        """bool [n]: of each class's images those to validate on: the same on every host, whatever the seed."""
        import numpy as np

        digests = [hashlib.blake2b(listed.below(index)).digest()[:16] for index in range(len(listed))]
        drawn = np.argsort(np.array(digests, "S16"), kind="stable")
        drawn = drawn[np.argsort(of[drawn], kind="stable")]
        sizes = np.bincount(of + 1)
        counts = np.minimum(np.maximum(1, np.rint((self.val_share or 0) * sizes)), sizes - 1)
        kept = np.zeros(len(listed), bool)
        kept[drawn] = _turns(of[drawn]) < counts[of[drawn] + 1]
        return kept

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
    folders = [entry.name for entry in entries if is_folder(entry) and not entry.name.startswith(".")]
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


def images_in(folder: str | os.PathLike[str]) -> list[str]:
    """Paths of the images in a folder and below it, in the order of their bytes."""
    from shoal.data.tree import tree

    return list(tree(os.fspath(folder), keep=False))


def _turns(labels: np.ndarray) -> np.ndarray:
    """int64 [n]: how many of the same label, which lie together, came before."""
    import numpy as np

    first = np.flatnonzero(np.diff(labels, prepend=labels[:1] - 1))
    return np.arange(len(labels)) - np.repeat(first, np.diff(first, append=len(labels)))


def is_folder(entry: os.DirEntry[Any]) -> bool:
    """Whether it is a folder, or a link to one. What nobody may look at, or a link to itself, counts as a file, and is
    told to be bad when it is read."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def entries_of(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise SourceError(f"{shown_path(folder)}: cannot be listed ({error.strerror})") from None
