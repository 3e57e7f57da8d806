"""Charts: curves as inline SVG that takes its colours from the page, and the figures behind them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH, HEIGHT = 400, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 14, 10, 40
_MOST_MARKS = 40
BINS = 200
"""Points that a line is drawn with at most; of more, neighbours become one."""
COLORS = 8
"""Line styles the page has; more lines begin anew."""


class Point(NamedTuple):
    """One of a line, or what several neighbours became: their mean, and how far they lie apart."""

    x: float
    y: float
    least: float
    most: float
    count: int = 1


@dataclass(frozen=True)
class Line:
    """A named line of a chart."""

    name: str
    points: tuple[Point, ...]
    marks: bool = False
    """Whether each point is shown, as for figures that were measured now and then."""

    @staticmethod
    def of(name: str, points: Sequence[tuple[float, float]], *, marks: bool = False) -> Line:
        """Points (x, y), x rising; thinned to BINS where there are many more."""
        return Line(name, thinned(points), marks and len(points) <= _MOST_MARKS)

    @property
    def binned(self) -> int:
        """The most points that became one."""
        return max((point.count for point in self.points), default=1)


def thinned(points: Sequence[tuple[float, float]], bins: int = BINS) -> tuple[Point, ...]:
    """At most `bins` points, each the mean of as many neighbours as the others (but the last), with their extremes."""
    size = -(-len(points) // bins) if len(points) > 2 * bins else 1
    return tuple(_together(points[low : low + size]) for low in range(0, len(points), size))


def _together(points: Sequence[tuple[float, float]]) -> Point:
    n, values = len(points), [y for _, y in points]
    return Point(sum(x for x, _ in points) / n, sum(values) / n, min(values), max(values), n)


@dataclass(frozen=True)
class Chart:
    """Lines over a common x. Titles and units are plain text; `note` says what cannot be seen, as n."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    note: str = ""
    from_zero: bool = False
    top: float | None = None
    """What y cannot exceed, as 1 for a share."""
    log: bool = False
    """Whether y may be drawn by its logarithm; it is where values span more than a factor of 20."""

    @property
    def told(self) -> tuple[tuple[int, Line], ...]:
        """Lines with points, by the number of their style."""
        return tuple((number % COLORS, line) for number, line in enumerate(self.lines) if line.points)

    @property
    def caption(self) -> str:
        """The note, and how the lines were thinned."""
        most = max((line.binned for _, line in self.told), default=1)
        thin = f"Each point is the mean of up to {most:,} reports; the band goes from their least to their largest."
        return " ".join(text for text in (self.note, thin if most > 1 else "") if text)

    @property
    def description(self) -> str:
        """What the chart shows, for those who do not see it."""
        return "; ".join(
            f"{line.name}: from {number(line.points[0].y)} to {number(line.points[-1].y)}, "
            f"least {number(min(point.least for point in line.points))}, "
            f"largest {number(max(point.most for point in line.points))}"
            for _, line in self.told
        )

    def svg(self, identity: str) -> Markup:
        """The drawing; `identity` is unique on its page."""
        parts = "".join(self._parts())
        return Markup(
            f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-labelledby="{identity}-t {identity}-d"><title id="{identity}-t">{escape(self.title)} '
            f'over {escape(self.x_label)}</title><desc id="{identity}-d">'
            f"{escape(self.description)}</desc>{parts}</svg>"
        )

    def _parts(self) -> Iterator[str]:
        right = max((line.points[-1].x for _, line in self.told), default=1.0) or 1.0
        ys = _Scale.of(self)
        across = _Axis(0.0, right, _LEFT, WIDTH - _RIGHT)
        for value in ys.ticks():
            y = ys.place(value)
            yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>'
            yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>'
        for value in ticks(0, right, 6):
            x = across.place(value)
            yield f'<path class="grid" d="M{x:.1f} {HEIGHT - _BOTTOM}v4"/>'
            yield f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 17}" text-anchor="middle">{number(value)}</text>'
        yield f'<path class="axis" d="M{_LEFT} {_TOP}V{HEIGHT - _BOTTOM}H{WIDTH - _RIGHT}"/>'
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        yield f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{escape(self.x_label)}</text>'
        for style, line in self.told:
            yield from self._line(style, line, across, ys)

    def _line(self, style: int, line: Line, across: _Axis, ys: _Scale) -> Iterator[str]:
        xs = [f"{across.place(point.x):.1f}" for point in line.points]
        if line.binned > 1:
            upper = [f"{x} {ys.place(point.most):.1f}" for x, point in zip(xs, line.points, strict=True)]
            lower = [f"{x} {ys.place(point.least):.1f}" for x, point in zip(xs, line.points, strict=True)]
            yield f'<path class="band c{style}" d="M{"L".join(upper)}L{"L".join(reversed(lower))}Z"/>'
        path = "L".join(f"{x} {ys.place(point.y):.1f}" for x, point in zip(xs, line.points, strict=True))
        yield f'<path class="line c{style}" d="M{path}"/>'
        if line.marks or len(line.points) == 1:
            for x, point in zip(xs, line.points, strict=True):
                told = f"{escape(line.name)}: {number(point.y)} at {number(point.x)} {escape(self.x_label)}"
                y = ys.place(point.y)
                yield f'<circle class="c{style}" cx="{x}" cy="{y:.1f}" r="3"><title>{told}</title></circle>'


class _Axis(NamedTuple):
    """Values [low, high] on places [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1) * (self.end - self.start)


class _Scale(NamedTuple):
    """The y axis, plain or by logarithm."""

    axis: _Axis
    log: bool

    @staticmethod
    def of(chart: Chart) -> _Scale:
        values = [y for _, line in chart.told for point in line.points for y in (point.least, point.most)] or [0.0, 1.0]
        least, most = min(values), max(values)
        place = (HEIGHT - _BOTTOM, _TOP)
        if chart.log and least > 0 and most > 20 * least:
            return _Scale(_Axis(math.log10(least) - 0.05, math.log10(most) + 0.05, *place), True)
        if chart.from_zero:
            least = min(0.0, least)
        room = 0.06 * (most - least) or 0.06 * abs(most) or 0.5
        high = most + room if chart.top is None else min(chart.top, most + room)
        low = least if chart.from_zero else max(0.0, least - room) if least >= 0 else least - room
        return _Scale(_Axis(low, high if high > low else low + 1, *place), False)

    def place(self, value: float) -> float:
        return self.axis.place(math.log10(value) if self.log else value)

    def ticks(self) -> list[float]:
        if not self.log:
            return ticks(self.axis.low, self.axis.high, 5)
        low, high = self.axis.low, self.axis.high
        steps = (1, 2, 5) if high - low < 3 else (1,)
        found = [step * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for step in steps]
        return [value for value in found if low <= math.log10(value) <= high]


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most about `most` round numbers from low to high."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(count * step, 12) for count in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A figure in as few characters as tell it."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10_000:
        return f"{value:,.0f}" if size < 100_000 else f"{value / 1000:,.4g}k" if size < 1e6 else f"{value / 1e6:,.4g}M"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.4g}" if size >= 1e-3 else f"{value:.0e}"
