"""Units are read strictly: what could mean two things is refused in one line that says what is right."""

from __future__ import annotations

import pytest

from shoal.base.errors import UsageError
from shoal.forecast import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("25Gbps", 25e9 / 8),
        ("100Mbit/s", 100e6 / 8),
        ("100 Mbit", 100e6 / 8),
        ("1GB/s", 1e9),
        ("1.5GiB/s", 1.5 * 2**30),
        ("9600bps", 1200.0),
    ],
)
def test_rates(text: str, expected: float) -> None:
    assert units.bytes_per_s(text) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    ["25", "25G", "25GBps", "25gbps", "100mbit", "-1Gbps", "1e9bps", "0Gbps", "0.0GB/s", "fast", "", "inf", "٣Gbps"],
)
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(UsageError, match="--link") as error:
        units.bytes_per_s(text)
    assert "\n" not in str(error.value)


def test_times() -> None:
    for text in ("20us", "20µs", "20μs", "0.02ms", "20000 ns"):
        assert units.seconds(text) == pytest.approx(2e-5, rel=1e-12)
    assert units.seconds("0s") == 0
    for text in ("20", "20 m", "-1us", "us", "20 usec", "20US"):
        with pytest.raises(UsageError, match="--latency"):
            units.seconds(text)


def test_speeds_and_numbers_of_workers() -> None:
    assert units.images_per_s("2500") == units.images_per_s("2500im/s") == 2500
    assert units.counts("1024, 8,64") == (8, 64, 1024)
    for text in ("0", "-3", "2500/min", "x"):
        with pytest.raises(UsageError, match="--rate"):
            units.images_per_s(text)
    for text in ("", "8,", "0", "8,8", "2.5", "1000000", "²"):
        with pytest.raises(UsageError, match="--workers"):
            units.counts(text)


def test_shown_as_they_are_written() -> None:
    assert units.shown_rate(units.bytes_per_s("25Gbps")) == "25Gbit/s"
    assert units.shown_rate(1 / (1 / units.bytes_per_s("1Gbps"))) == "1Gbit/s"
    assert units.shown_time(2e-5) == "20 us"
    assert units.shown_time(0.0) == "0 s"
    assert units.shown_bytes(102.2e6) == "102 MB"
