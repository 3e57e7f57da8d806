"""Times as people write them."""

from __future__ import annotations

import click
import pytest

from shoal.cli.seconds import Seconds


@pytest.mark.parametrize(("text", "seconds"), [("30", 30), ("30s", 30), ("2min", 120), ("0.5 h", 1800), ("off", None)])
def test_a_time(text: str, seconds: float | None) -> None:
    assert Seconds(3, may_be_off=True).convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2s", "2s is less than 3s"),
        ("soon", "'soon' is no time; expected one as in 30s or 2min"),
        ("off", "is no time"),
    ],
)
def test_no_time(text: str, told: str) -> None:
    with pytest.raises(click.BadParameter, match=told):
        Seconds(3).convert(text, None, None)
