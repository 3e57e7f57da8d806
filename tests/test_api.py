"""The Python API: it loads nothing before it is used, and docs/python.md is a program that works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
CPU = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}


def ran(script: str, folder: Path) -> str:
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, cwd=folder, env=CPU, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_importing_shoal_loads_nothing(tmp_path: Path):
    script = """
import sys, shoal
assert {"train", "load", "Run", "ShoalError", "UsageError"} <= set(dir(shoal))
assert not {"torch", "numpy", "click", "msgspec", "yaml"} & sys.modules.keys()
cases = ("digts", ()), ("digits", ["optim.lr=x"]), ({"data": "digits"}, {"batch": 0}), ("digits", "a=1")
for recipe, changes in cases:
    try:
        shoal.train(recipe, changes)
        raise AssertionError("trained")
    except shoal.UsageError as error:
        print(str(error).splitlines()[0])
assert callable(shoal.train) and "torch" not in sys.modules
import shoal.train.clock
assert callable(shoal.train)
"""
    lines = ran(script, tmp_path).splitlines()
    assert lines[0].startswith("no recipe called 'digts'; did you mean 'digits'?")
    assert lines[1] == "command line: optim.lr: expected a number >= 0, got 'x'"
    assert lines[2].startswith("recipe: model: missing; a name or a group of keys ")
    assert lines[3] == "overrides: expected a list as in ['a=1'], or a dict"
    assert list(tmp_path.iterdir()) == []


def test_no_such_name():
    import shoal

    with pytest.raises(AttributeError, match="module 'shoal' has no attribute 'trian'"):
        _ = shoal.trian  # pyright: ignore


@pytest.mark.slow
def test_the_page_is_a_program_that_works(tmp_path: Path):
    script = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    checks = """
assert pixels.shape == (2, *model.shape) == (2, 1, 8, 8) and logits.shape == (2, 10)
try:
    shoal.train("digits", workers=99)
except shoal.UsageError as error:
    print("refused:", error)
"""
    said = ran(script + checks, tmp_path)
    assert "Epoch[2] Validation-accuracy=" in said
    assert len(re.findall(r"^epoch [123]: \d+ of 359 correct$", said, re.MULTILINE)) == 3
    assert "command line: schedul: unknown key; did you mean 'schedule'?" in said
    assert re.search(r"^refused: .*99 workers", said, re.MULTILINE), said
