"""The words with which an engine starts a command once more."""

from __future__ import annotations

from pathlib import Path

from shoal.cli.again import again


def test_the_run_is_said_once_and_values_of_variables_not_at_all() -> None:
    words = ["train", "digits", "--run", "r", "-n", "4", "--env", "TOKEN=abc", "--env=HOME", "--detach", "optim.lr=0.1"]
    words += ["--launcher", "slurm", "--launcher-arg=--exclusive", "--dry-run", "--resume", "never"]
    kept, variables = again(words, Path("/runs/r"), {"HOME": "/root"})
    assert kept == ("train", "--run", "/runs/r", "digits", "-n", "4", "--env", "TOKEN", "--env", "HOME",
                    "optim.lr=0.1", "--launcher", "slurm")  # fmt: skip
    assert variables == {"TOKEN": "abc", "HOME": "/root"}


def test_another_program_keeps_its_words() -> None:
    program = ("python", "x.py", "--run", "mine", "--detach", "--env", "A=b")
    words = ["launch", "-n", "2", "--log-dir=l", "--", *program]
    kept, variables = again(words, Path("/l"), {}, program)
    assert kept == ("launch", "--log-dir", "/l", "-n", "2", "--", *program) and variables == {}
    bare = again(["launch", "-n", "2", *program], Path("/l"), {}, program)
    assert bare[0] == kept
