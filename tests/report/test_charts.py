"""Charts: what is drawn is what was measured, also where there are too many points to draw."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from shoal.report.charts import BINS, Chart, Line, number, thinned, ticks


def test_few_points_stay_as_they_are() -> None:
    points = [(float(x), float(x * x)) for x in range(2 * BINS)]
    assert [(p.x, p.y, p.least, p.most, p.count) for p in thinned(points)] == [(x, y, y, y, 1) for x, y in points]


def test_many_points_become_means_that_keep_every_extreme() -> None:
    points = [(float(x), 1.0) for x in range(100_001)]
    points[31_337] = (31_337.0, 500.0)
    points[70_000] = (70_000.0, -3.0)
    bins = thinned(points)
    assert len(bins) <= BINS and sum(point.count for point in bins) == 100_001
    assert max(point.most for point in bins) == 500 and min(point.least for point in bins) == -3
    total = sum(point.y * point.count for point in bins)
    assert total == pytest.approx(sum(y for _, y in points), rel=1e-12)
    chart = Chart("Loss", "epochs", "nats", (Line.of("a", points),), "n = 5.")
    assert chart.caption.startswith("n = 5. Each point is the mean of up to 501 reports")
    assert 'class="band c0"' in chart.svg("x")


def test_the_drawing_is_well_formed_and_says_what_it_shows() -> None:
    line = Line.of("a <script> & b", [(0.0, 1.0), (10.0, 0.25)], marks=True)
    svg = ET.fromstring(Chart("Loss & more", "epochs", "nats", (line,)).svg("c1"))
    assert svg.get("role") == "img" and svg.get("aria-labelledby") == "c1-t c1-d"
    title, description = svg[0].text or "", svg[1].text or ""
    assert title == "Loss & more over epochs"
    assert description == "a <script> & b: from 1 to 0.25, least 0.25, largest 1"
    assert len(svg.findall("circle")) == 2


def test_points_lie_where_the_axes_say() -> None:
    """The axis labels give the scale by which a line is read."""
    svg = Chart("t", "x", "y", (Line.of("a", [(0.0, 0.0), (5.0, 50.0), (10.0, 100.0)]),), from_zero=True).svg("i")
    found = re.search(r'class="line c0" d="M([\d. L]+)"', svg)
    assert found
    (x0, y0), (x1, y1), (x2, y2) = [tuple(map(float, pair.split())) for pair in found[1].split("L")]
    labels = {
        text: float(x) for x, text in re.findall(r'<text x="([\d.]+)" y="217" text-anchor="middle">([\d.]+)<', svg)
    }
    assert labels["0"] == x0 and labels["10"] == x2 and x1 == pytest.approx((x0 + x2) / 2)
    heights = {text: float(y) - 4 for y, text in re.findall(r'y="([\d.]+)" text-anchor="end">([\d.]+)<', svg)}
    assert heights["0"] == pytest.approx(y0, abs=0.11) and heights["100"] == pytest.approx(y2, abs=0.11)
    assert y1 == pytest.approx((y0 + y2) / 2, abs=0.11)


@pytest.mark.parametrize(
    "values", [[0.0], [1.0, 1.0], [-1.0, 2.0], [1e-9, 1e3], [1e6, 3e6], [0.999, 1.0]], ids=str
)  # fmt: skip
def test_any_values_can_be_drawn(values: list[float]) -> None:
    points = [(float(x), y) for x, y in enumerate(values)]
    for log in (False, True):
        ET.fromstring(Chart("t", "x", "y", (Line.of("a", points), Line.of("none", [])), log=log).svg("i"))


def test_ticks_and_numbers_are_round() -> None:
    assert ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.0, 0.0042, 5) == [0.0, 0.001, 0.002, 0.003, 0.004]
    assert ticks(3, 3, 5) == [3]
    assert [number(v) for v in (0, 0.05, 1234, 25_000, 2_500_000, 1e-5)] == [
        "0", "0.05", "1,234", "25,000", "2.5M", "1e-05",
    ]  # fmt: skip
