"""The loss scale: when it moves, how far, and when to give up."""

from __future__ import annotations

import pytest

from shoal.step.scaling import MOST, Scaler


def test_it_is_halved_at_an_overflow_and_doubled_after_steps_without():
    scaler = Scaler(1024.0, dynamic=True, growth_steps=3)
    scaler.stepped()
    scaler.stepped()
    scaler.overflowed()
    assert (scaler.scale, scaler.skipped, scaler.in_row) == (512, 1, 1)
    scales = []
    for _ in range(6):
        scaler.stepped()
        scales.append(scaler.scale)
    assert scales == [512, 512, 1024, 1024, 1024, 2048]
    assert (scaler.skipped, scaler.in_row) == (1, 0)


def test_it_never_exceeds_the_cap():
    scaler = Scaler(MOST, dynamic=True, growth_steps=1)
    scaler.stepped()
    assert scaler.scale == MOST == 2**24


def test_below_1_is_the_end():
    scaler = Scaler(4.0, dynamic=True)
    scaler.overflowed()
    assert scaler.exhausted is None
    scaler.overflowed()
    assert scaler.scale == 1 and "cannot be halved" in str(scaler.exhausted)


@pytest.mark.parametrize("scaler", [Scaler(), Scaler(1e9), Scaler(2.0**24, dynamic=True)])
def test_the_twentieth_skip_in_a_row_is_the_end(scaler: Scaler):
    before = scaler.scale
    for _ in range(19):
        assert scaler.exhausted is None
        scaler.overflowed()
    assert scaler.exhausted == "20 steps in a row were skipped"
    assert scaler.scale == (before / 2**19 if scaler.dynamic else before)
    scaler.stepped()
    assert scaler.exhausted is None


def test_a_state_goes_on_where_both_scales_move_and_else_only_counts():
    saved = Scaler(1024.0, dynamic=True, growth_steps=5)
    saved.overflowed()
    saved.stepped()
    going_on = Scaler(65536.0, dynamic=True, growth_steps=5)
    going_on.load(saved.state())
    assert going_on == saved
    fixed = Scaler(128.0)
    fixed.load(saved.state())
    assert (fixed.scale, fixed.skipped) == (128, 1)
    afresh = Scaler(65536.0, dynamic=True)
    afresh.load(fixed.state())
    assert (afresh.scale, afresh.skipped) == (65536, 1)
