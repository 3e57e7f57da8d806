"""`shoal data io` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from warm import warm

from small_images import class_folders

QUICK = ("strategy.threads=1", "--turns", "2", "--turn", "0.05s")


def test_images_in_files_come_stage_by_stage(tmp_path: Path) -> None:
    for split in ("train", "val"):
        class_folders(tmp_path / "images" / split, {"ant": 20, "bee": 20})
    words = (
        "own-images",
        f"data.path={tmp_path / 'images'}",
        "model=cifar-resnet8",
        "data.augment.size=32",
        "data.threads=1",
    )
    result = warm(tmp_path, "data", "io", *words, *QUICK, "--threads", "1,3", "--json", "--picture", tmp_path / "i.png")
    assert result.code == 0, result
    told = json.loads(result.out)
    stages = ["read", "decoded", "cropped", "in batches", "on the device"]
    assert [(row["stage"], row["threads"]) for row in told["rates"]] == [(s, t) for t in (1, 3) for s in stages]
    assert all(len(row["turns"]) == 2 and min(row["turns"]) > 0 for row in told["rates"])
    assert told["model_images_per_s"] > 0 and told["input_bound"] == (told["kept"] < 0.95)
    assert (tmp_path / "i.png").stat().st_size > 1000


def test_images_in_memory_are_not_decoded(tmp_path: Path) -> None:
    result = warm(tmp_path, "data", "io", "digits", *QUICK)
    assert result.code == 0 and "in memory" in result.out and "decoded" not in result.out, result
    assert "input-bound: the model takes" in result.out and "2 threads" not in result.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("digitz",), "did you mean 'digits'"),
        (("digits", "--threads", "1,none"), "expected numbers of threads from 1 on"),
        (("digits", "--picture", "no/such/folder/io.png"), "no such folder"),
        (("digits", "--turn", "0s"), "less than 0.01s"),
    ],
)
def test_wrong_words(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    result = warm(tmp_path, "data", "io", *words)
    assert result.code == 2 and told in result.err, result
