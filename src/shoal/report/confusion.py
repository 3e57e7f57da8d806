"""Confusion: which classes were taken for which, as a picture and as the pairs most worth knowing."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shoal.report.predictions import Predictions

MOST_CELLS = 20
"""Classes up to which every cell can be read as a number."""
MOST_CLASSES = 2000
"""Classes up to which a page has a pixel per cell, and a row per class."""


class Pair(NamedTuple):
    """So many of the images of one class were taken for another."""

    label: str
    guess: str
    count: int
    of: int


class Row(NamedTuple):
    """How one class fared."""

    name: str
    count: int
    correct1: int
    correct5: int
    mostly: str
    """What it was most often taken for; empty where for nothing else."""
    mistaken: int
    """How often that was."""

    @property
    def top1(self) -> float:
        return self.correct1 / max(self.count, 1)

    @property
    def top5(self) -> float:
        return self.correct5 / max(self.count, 1)


@dataclass(frozen=True)
class Confusion:
    """Of one validation."""

    names: tuple[str, ...]
    met: tuple[np.ndarray, np.ndarray, np.ndarray]
    """Labels, guesses and how many images of that class were taken for that one, int64 [k] each; the others are 0."""
    counts: np.ndarray
    """int64 [classes]: images of the class."""
    correct5: np.ndarray
    """int64 [classes]."""

    @staticmethod
    def of(predictions: Predictions) -> Confusion:
        outputs = predictions.outputs
        names = tuple(predictions.name(label) for label in range(outputs))
        labels = predictions.labels
        counts = np.bincount(labels[predictions.known], minlength=outputs)
        correct5 = np.bincount(labels[predictions.correct5], minlength=outputs)
        return Confusion(names, predictions.confusion(), counts, correct5)

    @property
    def cells(self) -> np.ndarray:
        """int64 [classes, classes]: images of the row's class that were taken for the column's. For few classes."""
        labels, guesses, counts = self.met
        cells = np.zeros((len(self.names), len(self.names)), np.int64)
        cells[labels, guesses] = counts
        return cells

    def rows(self) -> list[Row]:
        """Classes that have images, the worst first."""
        return sorted(self.by_class(), key=lambda row: (row.top1, row.top5))

    def by_class(self) -> list[Row]:
        """Classes that have images, in their order."""
        right, mistaken, other = (np.zeros(len(self.names), np.int64) for _ in range(3))
        labels, guesses, counts = self.met
        same = labels == guesses
        right[labels[same]] = counts[same]
        rising = np.lexsort((-guesses, counts))  # the most frequent, and of those the first, comes last and stays
        rising = rising[~same[rising]]
        other[labels[rising]], mistaken[labels[rising]] = guesses[rising], counts[rising]
        return [
            Row(
                name,
                int(self.counts[label]),
                int(right[label]),
                int(self.correct5[label]),
                self.names[other[label]] if mistaken[label] else "",
                int(mistaken[label]),
            )
            for label, name in enumerate(self.names)
            if self.counts[label]
        ]

    def pairs(self, most: int = 20) -> list[Pair]:
        """The pairs confused most often, the most frequent first."""
        labels, guesses, counts = self.met
        wrong = np.flatnonzero(labels != guesses)
        found = wrong[np.argsort(-counts[wrong], kind="stable")][:most]
        return [
            Pair(self.names[label], self.names[guess], count, int(self.counts[label]))
            for label, guess, count in zip(*(column[found].tolist() for column in self.met), strict=True)
        ]

    def shares(self) -> np.ndarray:
        """float64 [classes, classes]: cells by the images of their row's class."""
        return self.cells / np.maximum(self.counts, 1)[:, None]

    def png(self) -> bytes:
        """A pixel per cell, the stronger the larger its share of the row; right ones (on the diagonal) and mistakes in
        two colours, on nothing, so that it suits light pages and dark ones."""
        from PIL import Image

        strength = np.sqrt(self.shares())  # a mistake in a hundred is to be seen
        level = np.ceil(strength * 127).astype(np.uint8)
        index = level + np.where(np.eye(len(level), dtype=bool), 128, 0).astype(np.uint8)
        image = Image.frombytes("P", (len(index), len(index)), index.tobytes())
        image.putpalette([*([214, 88, 0] * 128), *([22, 122, 198] * 128)])
        held = io.BytesIO()
        opacity = bytes([0 if not level else 60 + level * 195 // 127 for level in range(128)] * 2)
        image.save(held, "PNG", transparency=opacity, optimize=False, compress_level=9)
        return held.getvalue()
