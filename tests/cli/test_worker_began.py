"""When a worker's sitting began: with the command that started it, but after a restart with the worker itself."""

from __future__ import annotations

import pytest

from shoal.cli import BEGAN
from shoal.cli.worker import _began


@pytest.mark.parametrize(
    ("generation", "began"), [(None, 7.5), ("0", 7.5), ("1", BEGAN)], ids=["alone", "first", "again"]
)
def test_what_was_before_a_restart_is_no_start_up(
    monkeypatch: pytest.MonkeyPatch, generation: str | None, began: float
) -> None:
    monkeypatch.setenv("SHOAL_BEGAN", "7.500")
    monkeypatch.delenv("SHOAL_GENERATION", raising=False)
    if generation is not None:
        monkeypatch.setenv("SHOAL_GENERATION", generation)
    assert _began() == began
