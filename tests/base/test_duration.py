"""Durations: exact, and turned into steps so that nothing fires twice or never."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.base.duration import Duration, Span

amounts = st.decimals(0, 10_000, allow_nan=False, allow_infinity=False).map(lambda d: f"{d:f}")
units = st.sampled_from(["ep", "st", "im", "kim", "Mim"])
durations = st.builds(lambda amount, unit: Duration.parse(f"{amount}{unit}"), amounts, units)
spans = st.builds(Span, images_per_epoch=st.integers(1, 300), batch=st.integers(1, 350))
short = st.builds(
    lambda n, d, unit: Duration(Fraction(n, d), unit),
    st.integers(0, 500), st.sampled_from([1, 2, 3, 10, 64]), st.sampled_from(["ep", "st", "im"]),
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("90ep", Fraction(90), "ep"),
        ("0.1ep", Fraction(1, 10), "ep"),
        ("5000st", Fraction(5000), "st"),
        ("50kim", Fraction(50_000), "im"),
        ("1.2Mim", Fraction(1_200_000), "im"),
        (" 600 im ", Fraction(600), "im"),
    ],
)
def test_parse(text: str, amount: Fraction, unit: str):
    assert Duration.parse(text) == Duration(amount, unit)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (90, "90 has no unit; a duration is a number with a unit: 90ep"),
        (0.5, "0.5 has no unit"),
        ("90", "'90' is no duration"),
        ("90 days", "'90 days' is no duration"),
        ("-1ep", "'-1ep' is no duration"),
        ("1e3st", "'1e3st' is no duration"),
        ("9mim", "'9mim' is no duration"),
        (None, "None is no duration"),
        (True, "True is no duration"),
        (["1ep"], r"\['1ep'\] is no duration"),
    ],
)
def test_what_is_no_duration(raw: object, told: str):
    with pytest.raises(ValueError, match=told):
        Duration.parse(raw)


@given(durations)
def test_text_is_read_back_exactly(duration: Duration):
    assert Duration.parse(str(duration)) == duration


def test_text_is_short():
    assert str(Duration.parse("10.50ep")) == "10.5ep"
    assert str(Duration.parse("0.00001ep")) == "0.00001ep"
    assert str(Duration.parse("1.2Mim")) == "1200000im"
    assert str(Duration(Fraction(1, 3), "ep")).startswith("0.333333")


@given(spans)
def test_images_are_counted_exactly_with_the_short_last_batch(span: Span):
    seen = 0
    for step in range(2 * span.steps_per_epoch):
        assert span.images_before(step) == seen
        left = span.images_per_epoch - seen % span.images_per_epoch
        seen += min(span.batch, left)
    assert seen == 2 * span.images_per_epoch


@given(short, spans)
def test_steps_is_the_smallest_number_that_is_long_enough(duration: Duration, span: Span):
    steps = duration.steps(span)
    if duration.unit == "st":
        assert steps - 1 < duration.amount <= steps
        return
    assert span.images_before(steps) >= duration.images(span)
    assert steps == 0 or span.images_before(steps - 1) < duration.images(span)


@given(st.integers(0, 200), spans)
def test_whole_epochs_and_steps(count: int, span: Span):
    epochs, steps = Duration(Fraction(count), "ep"), Duration(Fraction(count), "st")
    assert epochs.steps(span) == count * span.steps_per_epoch
    assert epochs.images(span) == count * span.images_per_epoch
    assert steps.steps(span) == count
    assert steps.images(span) == span.images_before(count)


@given(short, spans, st.integers(1, 200))
def test_due_fires_once_for_every_period_passed(duration: Duration, span: Span, total: int):
    assume(duration.amount > 0)
    fired = [step for step in range(total) if duration.due(step, span)]
    if duration.unit == "st":
        period, passed, longest = duration.amount, Fraction(total), 1
    else:
        period, passed = duration.images(span), Fraction(span.images_before(total))
        longest = min(span.batch, span.images_per_epoch)
    if period >= longest:
        assert len(fired) == passed // period
    else:  # several may pass in one step, which is still one time
        assert len(fired) <= passed // period


@given(spans, st.integers(1, 50))
def test_each_epochs_end_is_due(span: Span, epochs: int):
    every = Duration.parse("1ep")
    fired = [step for step in range(epochs * span.steps_per_epoch) if every.due(step, span)]
    assert fired == [epoch * span.steps_per_epoch - 1 for epoch in range(1, epochs + 1)]


def test_a_tenth_ten_times_is_one():
    span = Span(images_per_epoch=1000, batch=100)
    assert sum(Duration.parse("0.1ep").due(step, span) for step in range(10)) == 10


def test_nothing_is_never_due():
    assert not any(Duration.parse("0ep").due(step, Span(100, 10)) for step in range(100))
