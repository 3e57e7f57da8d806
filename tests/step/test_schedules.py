"""Schedules at their landmarks; functions of images, whatever the batch."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.duration import Duration, Span
from shoal.step.schedule import Schedule
from shoal.step.schedules.constant import Constant
from shoal.step.schedules.cosine import Cosine
from shoal.step.schedules.linear import Linear
from shoal.step.schedules.multistep import Multistep
from shoal.step.schedules.one_cycle import OneCycle
from shoal.step.schedules.step import Step

SPAN = Span(1000, 100)
TOTAL = 10_000


def time(text: str) -> Duration:
    return Duration.parse(text)


def factors(schedule: Schedule, *images: int) -> list[float]:
    return [schedule.factor(at, TOTAL, SPAN) for at in images]


def test_constant():
    assert factors(Constant(), 0, 1, TOTAL) == [1, 1, 1]


def test_linear():
    assert [Linear(end=0.2).factor(images, 100, Span(10, 5)) for images in (0, 50, 100)] == pytest.approx(
        [1.0, 0.6, 0.2]
    )


def test_cosine():
    assert factors(Cosine(), 0, 5_000, TOTAL) == [1, 0.5, 0]
    assert factors(Cosine(), 2_500) == [pytest.approx((1 + math.sqrt(0.5)) / 2, abs=1e-15)]
    assert factors(Cosine(end=0.2), 0, 5_000, TOTAL) == [1, pytest.approx(0.6, abs=1e-15), 0.2]


def test_cosine_is_counted_from_the_end_of_the_warm_up():
    assert factors(Cosine(warmup=time("2ep")), 0, 1_000, 2_000, 6_000, TOTAL) == [0, 0.5, 1, 0.5, 0]


def test_a_warm_up_may_outlast_the_training():
    assert factors(Cosine(warmup=time("20ep")), 0, 5_000, TOTAL) == [0, 0.25, 0.5]


def test_one_cycle():
    schedule = OneCycle(peak_at=0.25, start=0.1, end=0.01)
    assert factors(schedule, 0, 2_500, TOTAL) == [0.1, 1, 0.01]
    assert factors(schedule, 1_250, 6_250) == [pytest.approx(0.55, abs=1e-15), pytest.approx(0.505, abs=1e-15)]


def test_step():
    schedule = Step(every=time("3ep"), gamma=0.5)
    assert factors(schedule, 0, 2_999, 3_000, 5_999, 6_000, 9_000, TOTAL) == [1, 1, 0.5, 0.5, 0.25, 0.125, 0.125]


def test_step_by_steps_and_images():
    assert factors(Step(every=time("3st"), gamma=0.5), 299, 300, 600) == [1, 0.5, 0.25]
    assert factors(Step(every=time("0.5kim"), gamma=0.5), 499, 500) == [1, 0.5]


def test_step_refuses_to_drop_all_the_time():
    assert Step(every=time("0ep")).faults() == [("every", "must be longer than 0")]
    assert Step(every=time("1im")).faults() == []


def test_multistep():
    schedule = Multistep(at=(time("3ep"), time("60st"), time("8kim")), gamma=0.5)
    assert factors(schedule, 0, 2_999, 3_000, 5_999, 6_000, 7_999, 8_000) == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125]


def test_multistep_does_not_mind_the_order_of_its_times():
    one = Multistep(at=(time("3ep"), time("6ep")))
    other = Multistep(at=(time("6ep"), time("3ep")))
    assert factors(one, 0, 4_000, 7_000) == factors(other, 0, 4_000, 7_000)


def test_warm_up_is_a_line_over_the_schedule_underneath():
    schedule = Step(every=time("1ep"), gamma=0.5, warmup=time("2ep"), warmup_from=0.2)
    assert factors(schedule, 0, 500, 1_000, 2_000) == pytest.approx([0.2, 0.4, 0.3, 0.25], abs=1e-15)
    assert factors(Constant(warmup=time("20st")), 0, 500, 1_999, 2_000) == [0, 0.25, 1_999 / 2_000, 1]


def test_no_warm_up_begins_at_the_schedule_itself():
    assert factors(Constant(warmup_from=0.0), 0) == [1]


durations = st.builds(
    lambda amount, unit: Duration.parse(f"{amount}{unit}"), st.integers(1, 40), st.sampled_from(["ep", "kim"])
)
schedules = st.one_of(
    st.builds(Constant, warmup=durations, warmup_from=st.floats(0, 1)),
    st.builds(Cosine, warmup=durations, end=st.floats(0, 1)),
    st.builds(OneCycle, peak_at=st.floats(0.01, 0.99), start=st.floats(0, 1), end=st.floats(0, 1)),
    st.builds(Step, every=durations, gamma=st.floats(0.01, 1), warmup=durations),
    st.builds(Multistep, at=st.lists(durations, max_size=4).map(tuple), gamma=st.floats(0.01, 1)),
)


@given(schedule=schedules, images=st.integers(0, 30_000), one=st.integers(1, 2_000), other=st.integers(1, 2_000))
def test_a_schedule_knows_images_not_batches(schedule, images, one, other):
    assert schedule.factor(images, 30_000, Span(1000, one)) == schedule.factor(images, 30_000, Span(1000, other))


@given(schedule=schedules, images=st.integers(0, 30_000), total=st.integers(1, 30_000))
def test_a_factor_is_never_negative_nor_above_the_peak(schedule, images, total):
    assert 0 <= schedule.factor(min(images, total), total, Span(1000, 64)) <= 1
