"""How a study is conducted, with trainings that are made up here."""

import errno
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.base.errors import ShoalError, UsageError
from shoal.base.run import Run
from shoal.cli import shoal
from shoal.study import conduct
from shoal.study.grid import Grid
from shoal.study.study import Study

END = {"event": "end", "reason": "length", "images_per_s": 100.0, "trained_s": 9.0, "paused_s": 1.0, "top1": 0.9,
       "bytes_per_step": 5.0}  # fmt: skip
DRIVER = """
import sys
from shoal.study import conduct

with conduct._stopped_by_signals(), open("log", "w") as log:
    conduct._call([sys.executable, "-c", sys.argv[1]], log)
"""
TRAINING = """
import os, signal, sys, time

def stop(*_):
    print("saved", flush=True)
    sys.exit(75)

signal.signal(signal.SIGTERM, stop)
print("began", os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def grid():
    return Grid.plan("digits", (), ["ddp"], [1, 2], repeats=2)


@pytest.fixture
def study(tmp_path, grid):
    study = Study(tmp_path / "study")
    study.begin(grid)
    return study


@pytest.fixture
def trained(monkeypatch):
    """Run folders in the order in which they were trained; what stands in `ends` happens at the third."""
    folders, ends = [], []

    def call(argv, log):
        folder = Run(Path(argv[argv.index("--run") + 1]))
        folders.append(folder.folder.name)
        if len(folders) == 3 and ends:
            raise ends.pop()
        folder.folder.mkdir(parents=True)
        folder.metrics_file.write_text(json.dumps(END) + "\n")
        return 0

    monkeypatch.setattr(conduct, "_call", call)
    drawn = []
    monkeypatch.setattr(conduct, "write_pictures", lambda *_: drawn.append(len(folders)))
    call.folders, call.ends, call.drawn = folders, ends, drawn
    return call


def test_an_interrupted_study_tells_what_it_knows_and_goes_on(study, grid, trained):
    trained.ends.append(KeyboardInterrupt())
    told = []
    with pytest.raises(KeyboardInterrupt):
        conduct.conduct(study, grid, told.append)
    assert told[-1] == "stopped; the same command goes on"
    assert [row["n"] for row in json.loads(study.rows.read_text())["rows"]] == [1, 1]
    assert "2 of 4 trainings are still missing" in study.page.read_text()
    assert trained.drawn == [3]
    assert conduct.conduct(study, grid, told.append) == []
    assert trained.folders == ["ddp-1-1", "ddp-2-1", "ddp-2-2", "ddp-2-2", "ddp-1-2"]
    assert trained.drawn == [3, 5]


def test_tables_are_written_after_each_training(study, grid, trained, monkeypatch):
    known = []

    def note(study, grid, table):
        known.append([row.speed is not None for row in table])

    monkeypatch.setattr(conduct, "write_tables", note)
    conduct.conduct(study, grid, lambda line: None)
    assert known[0] == [True, False] and known[1:] == [[True, True]] * 4


def test_what_cannot_be_drawn_hides_no_interruption(study, grid, trained, monkeypatch):
    trained.ends.append(SystemExit(75))
    monkeypatch.setattr(conduct, "write_pictures", lambda *_: 1 / 0)
    with pytest.raises(SystemExit):
        conduct.conduct(study, grid, lambda line: None)


def test_a_training_that_lives_keeps_its_folder(study, grid, trained):
    lives = study.run(grid.cells[0], 0)
    lock = lives.claim()
    try:
        with pytest.raises(UsageError, match=r"ddp-1-1: in use by another run"):
            conduct.conduct(study, grid, lambda line: None)
    finally:
        lock.close()
    assert lives.folder.is_dir() and trained.folders == []


def test_a_run_that_does_not_go_is_not_trained_over(study, grid, trained, monkeypatch):
    run = study.run(grid.cells[0], 0)
    run.make()

    def stays(folder, ignore_errors=False):
        if not ignore_errors:
            raise OSError(errno.EBUSY, "Device or resource busy", str(folder))

    monkeypatch.setattr(conduct.shutil, "rmtree", stays)
    with pytest.raises(OSError, match="busy"):
        conduct.conduct(study, grid, lambda line: None)
    assert trained.folders == []


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 75), (signal.SIGHUP, 75), (signal.SIGINT, -signal.SIGINT)],  # of the latter `shoal` makes 130
    ids=["SIGTERM", "SIGHUP", "SIGINT"],
)
def test_a_signal_ends_the_training_first(tmp_path, number, code):
    child = subprocess.Popen([sys.executable, "-c", DRIVER, TRAINING], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        wait_for_word(tmp_path / "log", "began")
        child.send_signal(number)
        assert child.wait() == code
        assert (tmp_path / "log").read_text().splitlines()[1:] == ["saved"]
    finally:
        child.kill()
        child.wait()


def test_a_killed_study_takes_its_training_along(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", DRIVER, TRAINING], cwd=tmp_path)
    pid = int(wait_for_word(tmp_path / "log", "began").split()[1])
    child.kill()
    child.wait()
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        time.sleep(0.01)


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(conduct, "_train", full)
    with pytest.raises(ShoalError, match=r"study: No space left on device$"):
        scale(tmp_path, "--workers", "1")


def test_options_of_strategies_are_no_strategies(tmp_path):
    told = scale(tmp_path, "--workers", "2", "--strategies", "ps:mode=async,damping=false,ddp", "--dry-run").output
    assert set(re.findall(r"strategy=\S+", told)) == {"strategy=ps:mode=async,damping=false", "strategy=ddp"}


def test_a_second_study_in_the_folder_is_refused(tmp_path):
    lock = Study(tmp_path / "study").claim()
    try:
        with pytest.raises(UsageError, match="in use by another study"):
            scale(tmp_path)
    finally:
        lock.close()


def scale(folder, *words):
    out = ["--out", str(folder / "study")]
    return CliRunner().invoke(shoal, ["scale", "digits", *words, *out], catch_exceptions=False)


def wait_for_word(file, word):
    while not (told := file.read_text() if file.exists() else "").startswith(word) or not told.endswith("\n"):
        time.sleep(0.01)
    return told
