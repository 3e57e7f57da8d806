"""Confusion: rows, pairs, and a picture that shows each cell."""

from __future__ import annotations

import io

import numpy as np
from a_training import predictions
from PIL import Image

from shoal.report.confusion import Confusion, Pair


def test_rows_are_the_hardest_first_with_what_they_were_taken_for() -> None:
    rows = Confusion.of(predictions()).rows()
    assert [(row.name, row.correct1, row.count, row.mostly, row.mistaken) for row in rows] == [
        ("ship", 2, 3, "cat", 1), ("cat", 3, 4, "dog <b>", 1), ("dog <b>", 3, 4, "ship", 1),
    ]  # fmt: skip
    assert all(row.correct5 == row.count for row in rows)


def test_pairs_leave_out_what_was_right() -> None:
    confusion = Confusion.of(predictions())
    assert confusion.pairs(2) == [Pair("cat", "dog <b>", 1, 4), Pair("dog <b>", "ship", 1, 4)]
    assert len(confusion.pairs()) == 3


def test_a_thousand_classes_are_a_small_picture_in_which_every_mistake_is_seen() -> None:
    n = 1000
    cells = np.zeros((n, n), np.int64)
    np.fill_diagonal(cells, 49)
    cells[np.arange(n), (np.arange(n) * 7 + 3) % n] += 1
    names = tuple(map(str, range(n)))
    confusion = Confusion(names, cells, cells.sum(1), cells.sum(1))
    png = confusion.png()
    assert len(png) < 100_000
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGBA")).astype(int)
    assert np.array_equal(pixels[..., 3] > 0, cells > 0)
    diagonal = pixels[np.arange(n), np.arange(n)]
    assert (diagonal[:, 2] > diagonal[:, 0]).all() and (diagonal[:, 3] > 240).all()
    mistakes = pixels[(cells > 0) & ~np.eye(n, dtype=bool)]
    assert (mistakes[:, 0] > mistakes[:, 2]).all() and (mistakes[:, 3] > 75).all()
