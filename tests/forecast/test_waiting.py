"""Stragglers: the mean of the slowest of n, and what waiting for it costs."""

from __future__ import annotations

import math

import pytest

from shoal.forecast.stragglers import largest_of, waiting_s


def test_largest_of_so_many_normal_numbers() -> None:
    assert largest_of(1) == 0
    assert largest_of(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-6)
    assert largest_of(3) == pytest.approx(1.5 / math.sqrt(math.pi), abs=1e-6)
    known = {8: 1.42360, 64: 2.34373, 1000: 3.24144}  # tables of normal order statistics
    for workers, expected in known.items():
        assert largest_of(workers) == pytest.approx(expected, abs=1e-4)
    assert largest_of(100_000) == pytest.approx(4.3843, abs=1e-4)


def test_waiting_grows_with_workers_and_falls_with_steps_between_meetings() -> None:
    assert waiting_s(1.0, 0.1, 1) == 0
    assert waiting_s(1.0, 0.1, 32) == pytest.approx(0.2070, abs=1e-4)
    assert waiting_s(1.0, 0.1, 32, times=16) == pytest.approx(0.2070 / 4, abs=1e-4)


def test_a_core_that_is_always_slower_does_not_even_out() -> None:
    assert waiting_s(2.0, 0.0, 2, times=100, uneven=0.03) == pytest.approx(0.06)
    assert waiting_s(2.0, 0.1, 1, uneven=0.03) == 0


def test_one_slow_worker_holds_up_all() -> None:
    assert waiting_s(2.0, 0.1, 8, slow=3.0) == 4.0
