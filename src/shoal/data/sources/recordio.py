from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from shoal.base.errors import shown_path
from shoal.data.encoded import YourImages, train_or_val
from shoal.data.source import Encoded, Pixels, SourceError, Split

if TYPE_CHECKING:
    import numpy as np

MOST_CLASSES = 1 << 24  # a float32 label counts no further


class Recordio(YourImages, frozen=True, kw_only=True):
    """MXNet's RecordIO, as im2rec packs it: `path` is the training .rec and `val` the other, or `path` is a folder with
    *train*.rec and *val*.rec. An .idx beside a .rec is used, and not needed; a .lst beside it names the classes."""

    name: Literal["recordio"] = "recordio"
    label: Annotated[int, Meta(ge=0)] = 0
    """Which of its labels an image is trained on, where records have several; 0: the first."""

    def open(self, split: Split) -> Pixels | Encoded:
        from shoal.data.readahead import reader
        from shoal.data.recordio import opened

        records = opened(self._file(split))
        labels, classes = self.labels_and_classes(split)
        read = reader(records, self.shuffle) if split == "train" else records.image
        return self.split(read, records.where, labels, classes, nbytes=records.nbytes, version=records.version)

    def labels_and_classes(self, split: Split) -> tuple[np.ndarray, tuple[str, ...]]:
        """int64 [n]; names of the classes that are trained on."""
        import numpy as np

        highest = int(self._labels("train").max())
        return self._labels(split), self._classes(np.arange(highest + 1))

    def _file(self, split: Split) -> Path:
        path = Path(self.path)
        if split == "val" and self.val is not None:
            path = Path(self.val)
        elif split == "val" and path.is_file():
            raise SourceError(f"{shown_path(path)}: is one .rec, to train on; data.val names the one to validate on")
        if path.is_dir():
            path = train_or_val(path, split)
        if not path.exists():
            raise SourceError(f"{shown_path(path)}: no such file; data.{'val' if self.val else 'path'} names a .rec")
        return path

    def _labels(self, split: Split) -> np.ndarray:
        """int64 [n]. SourceError: a label that is no class number."""
        import numpy as np

        from shoal.data.recordio import opened

        records = opened(self._file(split))
        labels = records.labels(self.label)
        wrong = ~((labels >= -1) & (labels < MOST_CLASSES) & (labels == np.floor(labels)))  # true of NaN, too
        if wrong.any():
            at = int(wrong.argmax())
            raise SourceError(
                f"{records.where(at)}: label {labels[at]:g} is no class number (0, 1, … or -1 for none); "
                "data.label picks another where records have several"
            )
        return labels.astype(np.int64)

    def _classes(self, numbers: np.ndarray) -> tuple[str, ...]:
        """Names of the classes: the folders in the .lst beside the training .rec, where there is one for each; else
        numbers."""
        plain = tuple(str(number) for number in numbers)
        lst = self._file("train").with_suffix(".lst")
        if not lst.is_file():
            return plain
        folders = _folders(lst, self.label)
        names = tuple(next(iter(folders.get(int(number), ())), str(number)) for number in numbers)
        one_to_one = all(len(known) == 1 for known in folders.values()) and len(set(names)) == len(names)
        return names if one_to_one else plain


def _folders(lst: Path, column: int) -> dict[int, set[str]]:
    """Label -> names of the folders that its images lay in, of im2rec's list: number TAB label(s) TAB path."""
    folders: dict[int, set[str]] = {}
    for number, line in enumerate(lst.read_bytes().splitlines(), 1):
        columns = line.split(b"\t")
        try:
            identity, *labels, path = columns
            int(identity)
            label = int(float(labels[column]))
        except (ValueError, IndexError, OverflowError):
            wanted = f"number TAB {'label TAB ' * (column + 1)}path"
            text = line[:60].decode("utf-8", "backslashreplace")
            raise SourceError(f"{shown_path(lst)}:{number}: expected {wanted}, got {text!r}") from None
        folders.setdefault(label, set()).add(shown_path(Path(path.decode("utf-8", "surrogateescape")).parent.name))
    return {label: names - {""} for label, names in folders.items()}
