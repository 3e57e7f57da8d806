"""Confusion: rows, pairs, and a picture that shows each cell."""

from __future__ import annotations

import io
import tracemalloc

import numpy as np
from a_training import predictions
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shoal.report.confusion import Confusion, Pair
from shoal.report.predictions import Predictions


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
    confusion = Confusion(names, (*np.nonzero(cells), cells[cells > 0]), cells.sum(1), cells.sum(1))
    png = confusion.png()
    assert len(png) < 100_000
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGBA")).astype(int)
    assert np.array_equal(pixels[..., 3] > 0, cells > 0)
    diagonal = pixels[np.arange(n), np.arange(n)]
    assert (diagonal[:, 2] > diagonal[:, 0]).all() and (diagonal[:, 3] > 240).all()
    mistakes = pixels[(cells > 0) & ~np.eye(n, dtype=bool)]
    assert (mistakes[:, 0] > mistakes[:, 2]).all() and (mistakes[:, 3] > 75).all()


def test_many_classes_take_no_square_of_memory() -> None:
    n = 20_000  # 3.2 GB
    labels = np.arange(2 * n, dtype=np.int32) % n
    guesses = np.stack([np.where(labels % 5, labels, (labels + 7) % n), (labels + 1) % n], 1).astype(np.int32)
    known, names = np.full((2 * n, 2), 0.5, np.float32), tuple(map(str, range(n)))
    tracemalloc.start()
    try:
        confusion = Confusion.of(Predictions(names, labels, guesses, known, known[:, 0]))
        rows, pairs = confusion.rows(), confusion.pairs()
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert [(row.correct1, row.mostly, row.mistaken) for row in rows[:2]] == [(0, "7", 2), (0, "12", 2)]
    assert len(rows) == n and rows[-1].correct1 == 2 and rows[-1].mostly == ""
    assert pairs[:2] == [Pair("0", "7", 2, 2), Pair("5", "12", 2, 2)]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
@settings(max_examples=50)
def test_rows_and_pairs_are_those_of_the_whole_matrix(met) -> None:
    labels, guesses = (np.array(column, np.int32) for column in zip(*met, strict=True))
    half = np.full((len(met), 1), 0.5, np.float32)
    confusion = Confusion.of(Predictions(tuple("abcde"), labels, guesses[:, None], half, half[:, 0]))
    cells = np.zeros((5, 5), int)
    np.add.at(cells, (labels, guesses), 1)
    assert np.array_equal(confusion.cells, cells)
    off = cells * (1 - np.eye(5, dtype=int))
    for row in confusion.by_class():
        label = "abcde".index(row.name)
        mostly = "abcde"[off[label].argmax()] if off[label].any() else ""
        assert (row.correct1, row.mostly, row.mistaken) == (cells[label, label], mostly, off[label].max())
    order = np.argsort(-off.ravel(), kind="stable")[: np.count_nonzero(off)]
    told = ["abcde"[cell // 5] + "abcde"[cell % 5] for cell in order]
    assert [pair.label + pair.guess for pair in confusion.pairs(25)] == told
