"""Files and folders that are whole or absent, whatever happens while they are written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.base.files import folder_whole, write_whole


class Crash(BaseException):
    """What a signal or a full disk does to a writer."""


def crash(*_: object) -> None:
    raise Crash


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_write_makes_folders_and_replaces(tmp_path: Path):
    path = tmp_path / "a" / "b.json"
    write_whole(path, "one é")
    assert path.read_text(encoding="utf-8") == "one é"
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["b.json"]


@pytest.mark.parametrize("verb", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str):
    path = tmp_path / "file"
    write_whole(path, "old")
    monkeypatch.setattr(os, verb, crash)
    with pytest.raises(Crash):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_folder_appears_whole(tmp_path: Path):
    path = tmp_path / "checkpoints" / "step-1"
    with folder_whole(path) as aside:
        (aside / "model").write_text("weights")
        assert not path.exists()
    assert names(path.parent) == ["step-1"]
    assert names(path) == ["model"]


def test_a_folder_replaces_an_older_one_wholly(tmp_path: Path):
    path = tmp_path / "step-1"
    for name in ("old", "new"):
        with folder_whole(path) as aside:
            (aside / name).write_text("")
    assert names(path) == ["new"]
    assert names(tmp_path) == ["step-1"]


@pytest.mark.parametrize("before", [False, True])
def test_a_block_that_raises_leaves_what_was_there(tmp_path: Path, before: bool):
    path = tmp_path / "step-1"
    if before:
        with folder_whole(path) as aside:
            (aside / "old").write_text("")
    with pytest.raises(Crash), folder_whole(path) as aside:
        (aside / "half").write_text("")
        raise Crash
    assert names(tmp_path) == (["step-1"] if before else [])
    assert not before or names(path) == ["old"]


def test_a_failed_rename_puts_the_older_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, rename = tmp_path / "step-1", os.rename
    with folder_whole(path) as aside:
        (aside / "old").write_text("")

    def fails_for_new(source: Path, target: Path) -> None:
        crash() if source.name.endswith(".aside") else rename(source, target)

    monkeypatch.setattr(os, "rename", fails_for_new)
    with pytest.raises(Crash), folder_whole(path):
        pass
    assert names(tmp_path) == ["step-1"]
    assert names(path) == ["old"]


def test_leftovers_of_a_killed_process_of_the_same_number_do_no_harm(tmp_path: Path):
    path = tmp_path / "step-1"
    for left in ("aside", "old"):
        (tmp_path / f".step-1.{os.getpid()}.{left}" / "x").mkdir(parents=True)
    for name in ("one", "two"):
        with folder_whole(path) as aside:
            (aside / name).write_text("")
    assert names(path) == ["two"]
    assert names(tmp_path) == ["step-1"]
