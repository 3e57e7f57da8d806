"""Runs below a folder, and what the terminal says of one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from a_training import END, EPOCH, SAVE, START, TRAIN, VAL, judged
from click.testing import CliRunner

from shoal.base.errors import UsageError
from shoal.base.run import Run
from shoal.cli import shoal
from shoal.report.runs import find, rows
from shoal.report.terminal import told

FULL = (START, TRAIN, EPOCH, VAL, SAVE, END)


def many(base: Path) -> dict[str, Run]:
    """One of each state, begun in this order."""
    runs = {
        "done": judged(base / "a" / "done", *FULL),
        "stopped": judged(base / "stopped", *FULL[:-1], END | {"reason": "signal"}),
        "died": judged(base / "b" / "died", START),
        "at-start": judged(base / "b" / "at-start"),
        "damaged": judged(base / "damaged", START),
    }
    runs["damaged"].metrics_file.write_text('{"event": "start", \n{"event": "end"}\n')
    (base / ".hidden").mkdir()
    judged(base / ".hidden" / "run", START)
    (base / "recipes").mkdir()
    (base / "recipes" / "recipe.yaml").write_text("data: digits\n")
    for number, run in enumerate(runs.values()):
        os.utime(run.recipe, (1.7e9 + number, 1.7e9 + number))
    return runs


def test_found_the_newest_first_with_what_they_came_to(tmp_path: Path) -> None:
    runs = many(tmp_path)
    found = find(tmp_path)
    assert found == list(reversed(runs.values()))
    shown = {Path(str(row[0])).name: row[2:] for row in rows(found)}
    assert shown == {
        "done": ("digits", "done", "2/2", "0.9749", "359", "1,169"),
        "stopped": ("digits", "stopped", "2/2", "0.9749", "359", "1,169"),
        "died": ("digits", "died", "0/2", None, None, None),
        "at-start": (None, "died", None, None, None, None),
        "damaged": (None, "damaged", None, None, None, None),
    }
    assert find(runs["done"].folder) == [runs["done"]], "a run is found where it is named"
    lock = runs["died"].claim()
    assert [row[3] for row in rows([runs["died"]])] == ["running"]
    lock.close()


def test_only_the_events_asked_for_are_read(tmp_path: Path) -> None:
    run = judged(tmp_path, *FULL)
    run.metrics_file.write_text(run.metrics_file.read_text().replace('"loss": 2.1', '"loss": ', 1))
    assert [event["event"] for event in run.read_metrics({"val", "end"})] == ["val", "end"]


def listed(*words: str) -> str:
    return CliRunner().invoke(shoal, ["list", "runs", *words], catch_exceptions=False).stdout


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many(tmp_path)
    monkeypatch.chdir(tmp_path / "a")
    (head, _, line) = listed().splitlines()
    assert head.split() == ["run", "begun", "recipe", "state", "epochs", "top-1", "n", "images/s"]
    assert line.startswith("done ") and line.endswith("done   2/2     0.9749  359     1,169")
    assert len(listed(str(tmp_path)).splitlines()) == 7
    with pytest.raises(UsageError, match="no such folder; shoal list runs FOLDER"):
        listed("nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no runs at or below"):
        listed(str(tmp_path / "empty"))


def test_the_terminal_says_what_the_page_says(tmp_path: Path) -> None:
    run = judged(tmp_path / "run", *FULL)
    text = told(run)
    for part in ("97.5 % of 359 validation images", "where the time went", "taken for", "dog <b>", "metrics"):
        assert part in " ".join(text.split()), part
    assert max(map(len, text.splitlines()[:4])) <= 100
    run.predictions(23).unlink()
    assert f"Classes: not known ({run.predictions(23)} is not there)." in told(run)
    dead = judged(tmp_path / "dead")
    assert told(dead) == "This training ended before its first step."
    assert json.loads(dead.metrics_file.read_text() or "null") is None
