"""What every schedule must do, the one that is added tomorrow too."""

from __future__ import annotations

import math

import pytest
from a_part import assert_torch_free, minimal, parts

from shoal.base.duration import Span

pytestmark = pytest.mark.parametrize("name", parts("schedules"))


@pytest.mark.parametrize("warmup", ["0ep", "1ep", "50st", "20ep"])
@pytest.mark.parametrize("span", [Span(1000, 100), Span(7, 3), Span(1, 1)])
def test_factors_are_finite_and_within_0_and_1_from_beginning_to_end(name, warmup, span):
    schedule = minimal("schedules", name, warmup=warmup)
    total = 10 * span.images_per_epoch
    for images in sorted({0, 1, total, *(span.images_before(step) for step in range(10 * span.steps_per_epoch))}):
        factor = schedule.factor(images, total, span)
        assert isinstance(factor, float) and math.isfinite(factor)
        assert 0 <= factor <= 1


def test_a_factor_is_of_images_alone(name):
    schedule = minimal("schedules", name, warmup="1ep")
    for images in range(0, 10_001, 37):
        factors = [schedule.factor(images, 10_000, Span(1000, batch)) for batch in (1, 7, 100, 5000)]
        assert factors == [factors[0]] * 4


def test_the_peak_is_reached_unless_something_forbids_it(name):
    schedule = minimal("schedules", name)
    assert max(schedule.factor(images, 10_000, Span(1000, 100)) for images in range(0, 10_001, 100)) == 1


def test_importing_it_does_not_import_torch(name):
    assert_torch_free("schedules", name)
