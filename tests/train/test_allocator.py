"""What is told to the allocator, and that a step's memory then stays."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from shoal.train import allocator

FAULTS = """
import resource, sys
import numpy as np
from shoal.train.allocator import keep_memory
if sys.argv[1] == "keep":
    keep_memory()
def step():
    held = [np.ones(20 << 20, np.uint8) for _ in range(5)]
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in allocator._OWN_WORDS:
        monkeypatch.delenv(word, raising=False)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_what_a_step_frees_is_there_for_the_next() -> None:
    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults("keep") < 100 < faults("leave")
    assert allocator.describe().startswith("allocator: keeps freed blocks up to 32 MiB for the next step")


def test_who_has_said_something_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    assert allocator.describe() == "allocator: as it is (MALLOC_TRIM_THRESHOLD_ is set)"
    allocator.keep_memory()
