"""The console: a reader that takes nothing, or is gone, holds up nobody."""

from __future__ import annotations

import io
import os
import time

import pytest

from lag import Lag
from shoal.launch import console as module
from shoal.launch.console import Console


def test_lines_come_in_order() -> None:
    stream = io.StringIO()
    console = Console(stream)
    for number in range(100):
        console.show(f"line {number}")
    console.close()
    assert stream.getvalue().splitlines() == [f"line {number}" for number in range(100)]


def test_nothing_shown_costs_nothing() -> None:
    Console(io.StringIO()).close()


def test_a_console_that_takes_nothing_holds_up_nobody(monkeypatch: pytest.MonkeyPatch, lag: Lag) -> None:
    monkeypatch.setattr(module, "_LAST_S", 0.1)
    reads, writes = os.pipe()
    console = Console(open(writes, "w"))  # noqa: SIM115
    began = lag.begin()
    for _ in range(2 * module._MOST):
        console.show("x" * 100)
    console.close()
    assert time.monotonic() - began < lag.allows(5)
    os.close(reads)
