"""Predictions: kept whole in one file, and what is picked from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from a_training import predictions

from shoal.base.errors import ShoalError
from shoal.report.confusion import Confusion
from shoal.report.predictions import Predictions


def test_a_file_gives_back_what_was_put_in(tmp_path: Path) -> None:
    held = predictions()
    path = tmp_path / "predictions.npz"
    path.write_bytes(held.to_bytes())
    again = Predictions.read(path)
    assert again.classes == held.classes
    for name in ("labels", "guesses", "probabilities", "label_probabilities", "shown", "pictures"):
        assert np.array_equal(getattr(again, name), getattr(held, name)), name
    assert again.to_bytes() == held.to_bytes(), "the same predictions must have the same bytes"


def test_images_without_a_label_count_nowhere() -> None:
    held = predictions()
    assert held.known.sum() == 11 and held.correct.sum() == 8 and held.correct5.sum() == 11
    assert Confusion.of(held).cells.tolist() == [[3, 1, 0], [0, 3, 1], [1, 0, 2]]


def test_the_worst_are_those_whose_label_seemed_least_probable() -> None:
    held = predictions()
    assert held.worst().tolist() == sorted([6, 8, 10], key=lambda index: held.label_probabilities[index])
    assert held.worst(1).tolist() == [6]


def test_the_surest_come_from_all_classes_in_turn() -> None:
    held = predictions()
    labels = held.labels[held.surest(6)].tolist()
    assert labels == [0, 1, 2, 0, 1, 2] and held.surest(1).tolist() == [0]
    assert held.correct[held.surest()].all()


def test_pictures_are_found_by_their_image() -> None:
    held = predictions()
    assert np.array_equal(held.picture(6), held.pictures[held.shown.tolist().index(6)])
    assert held.picture(11) is None and held.picture(99) is None


def test_outputs_beyond_the_names_have_one() -> None:
    held = predictions()
    held.guesses[0, 0] = 4
    assert held.outputs == 5 and held.name(4) == "class 4" and Confusion.of(held).cells.shape == (5, 5)


@pytest.mark.parametrize("damage", ["cut", "rubbish", "missing", "empty", "pickled"])
def test_damaged_files_are_told(tmp_path: Path, damage: str) -> None:
    path, whole = tmp_path / "predictions.npz", predictions().to_bytes()
    if damage == "pickled":
        with path.open("wb") as file:
            np.savez(file, labels=np.array([{}], dtype=object))
    elif damage != "missing":
        path.write_bytes({"cut": whole[: len(whole) // 2], "rubbish": b"rubbish", "empty": b""}[damage])
    with pytest.raises(ShoalError, match=r"predictions\.npz: (damaged|not there)"):
        Predictions.read(path)
