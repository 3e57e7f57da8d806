"""Predictions: what a validation said of each image, and the pictures most worth a look; one small file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from shoal.base.errors import ShoalError

WORST, SUREST = 24, 24
"""Pictures kept of each sort."""


def _none() -> np.ndarray:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Predictions:
    """Of n validation images, in the order of their source."""

    classes: tuple[str, ...]
    labels: np.ndarray
    """int32 [n]; -1 where there is none."""
    guesses: np.ndarray
    """int32 [n, k], the k <= 5 most probable classes; equally probable ones in the order of classes."""
    probabilities: np.ndarray
    """float32 [n, k], of the guesses; NaN where the model gave no numbers."""
    label_probabilities: np.ndarray
    """float32 [n], of the label; 0 where there is none."""
    shown: np.ndarray = field(default_factory=_none)
    """int64 [m], rising: the images there are pictures of."""
    pictures: np.ndarray = field(default_factory=lambda: np.empty((0, 0, 0, 3), np.uint8))
    """uint8 [m, h, w, channels]."""

    @property
    def known(self) -> np.ndarray:
        """bool [n]: has a label. The others count nowhere."""
        return self.labels >= 0

    @property
    def correct(self) -> np.ndarray:
        """bool [n]: the label is the first guess."""
        return self._told & (self.guesses[:, 0] == self.labels)

    @property
    def correct5(self) -> np.ndarray:
        """bool [n]: the label is among the guesses."""
        return self._told & (self.guesses == self.labels[:, None]).any(1)

    @property
    def _told(self) -> np.ndarray:
        return self.known & np.isfinite(self.probabilities[:, 0])

    @property
    def outputs(self) -> int:
        """Classes there are or were guessed: a model may have more outputs than its data has names."""
        return max(len(self.classes), int(self.guesses.max(initial=-1)) + 1)

    def name(self, label: int) -> str:
        return self.classes[label] if 0 <= label < len(self.classes) else f"class {label}"

    def confusion(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Labels, guesses and how often they met, int64 [k] each, of those that did, in their order: all cells of
        100,000 classes would be 80 GB."""
        told, outputs = self._told, self.outputs
        cells, counts = np.unique(
            self.labels[told].astype(np.int64) * outputs + self.guesses[told, 0], return_counts=True
        )
        return *divmod(cells, outputs), counts

    def worst(self, most: int = WORST) -> np.ndarray:
        """Images taken for another class, those first whose label seemed least probable."""
        wrong = np.flatnonzero(self._told & ~self.correct)
        order = np.lexsort((wrong, -self.probabilities[wrong, 0], self.label_probabilities[wrong]))
        return wrong[order][:most]

    def surest(self, most: int = SUREST) -> np.ndarray:
        """Images guessed right with the highest probability, as evenly from all classes as may be."""
        right = np.flatnonzero(self.correct)
        right = right[np.lexsort((right, -self.probabilities[right, 0]))]
        turns = _turns(self.labels[right])
        return right[np.argsort(turns, kind="stable")][:most]

    def worth_a_look(self) -> np.ndarray:
        """int64, rising: the images of which pictures are to be kept."""
        return np.union1d(self.worst(), self.surest()).astype(np.int64)

    def with_pictures(self, shown: np.ndarray, pictures: np.ndarray) -> Predictions:
        """shown int64 [m], rising; pictures uint8 [m, h, w, channels]."""
        return replace(self, shown=shown, pictures=pictures)

    def picture(self, index: int) -> np.ndarray | None:
        """uint8 [h, w, channels], where there is one."""
        place = int(np.searchsorted(self.shown, index))
        return self.pictures[place] if place < len(self.shown) and self.shown[place] == index else None

    def to_bytes(self) -> bytes:
        held = io.BytesIO()
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        np.savez(held, classes=np.array(self.classes, dtype=str), **arrays)
        return held.getvalue()

    @staticmethod
    def read(path: Path) -> Predictions:
        """ShoalError when the file is not there or damaged."""
        try:
            with np.load(path, allow_pickle=False) as held:
                found = Predictions(tuple(held["classes"].tolist()), **{name: held[name] for name in _ARRAYS})
        except FileNotFoundError:
            raise ShoalError(f"{path}: not there") from None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ShoalError(f"{path}: damaged predictions ({error})") from None
        if not found._fits():
            raise ShoalError(f"{path}: damaged predictions (arrays of unequal lengths)")
        return found

    def _fits(self) -> bool:
        n = len(self.labels)
        return (
            self.guesses.ndim == 2
            and self.guesses.shape == self.probabilities.shape == (n, self.guesses.shape[1])
            and self.label_probabilities.shape == (n,)
            and self.pictures.ndim == 4
            and len(self.shown) == len(self.pictures)
        )


_ARRAYS = ("labels", "guesses", "probabilities", "label_probabilities", "shown", "pictures")


def _turns(labels: Sequence[int] | np.ndarray) -> np.ndarray:
    """int64 [n]: how many of the same label came before."""
    labels = np.asarray(labels)
    order = np.argsort(labels, kind="stable")
    ranked = labels[order]
    first = np.searchsorted(ranked, ranked)
    turns = np.empty(len(labels), np.int64)
    turns[order] = np.arange(len(labels)) - first
    return turns
