"""`shoal tune lr` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from warm import warm


def test_a_rate_for_the_digits(tmp_path: Path) -> None:
    words = ("strategy.threads=1", "--seeds", "1", "--steps", "60", "--picture", tmp_path / "lr.png", "--json")
    result = warm(tmp_path, "tune", "lr", "digits", *words)
    assert result.code == 0, result
    told = json.loads(result.out)
    (curve,) = told["curves"]
    assert curve["steepest"] <= told["suggested"] <= curve["lowest"] < curve["diverged"] <= 10
    assert 0.003 < told["suggested"] < 0.5 and len(curve["losses"]) < 60
    assert (tmp_path / "lr.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("digits", "--from", "1", "--to", "0.1"), "--from 1: expected less than --to 0.1"),
        (("digitz",), "did you mean 'digits'"),
        (("digits", "--picture", "no/such/folder/lr.png"), "no such folder"),
        (("digits", "--steps", "3"), "--steps"),
    ],
)
def test_wrong_words(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    result = warm(tmp_path, "tune", "lr", *words)
    assert result.code == 2 and told in result.err, result
