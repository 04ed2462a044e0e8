"""Charts as inline SVG: no script is needed to see them, colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 12, 48, 34
_BARE_TOP = 14
"""Where no marks stand above the plot."""
Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A polyline of a chart. ``style`` is a class of the page's style sheet."""

    points: Sequence[Point]
    style: str
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Band:
    """An area between two curves over the same x."""

    points: Sequence[tuple[float, float, float]]
    style: str


@dataclass(frozen=True, kw_only=True)
class Dot:
    """One marked value."""

    at: Point
    style: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A vertical line with a word."""

    x: float
    text: str


def chart(
    *,
    title: str,
    x_name: str,
    lines: Sequence[Line] = (),
    bands: Sequence[Band] = (),
    dots: Sequence[Dot] = (),
    marks: Sequence[Mark] = (),
    from_zero: bool = False,
    x_low: float | None = None,
) -> str:
    """An SVG with axes that start at the least values, or at zero and ``x_low``. Empty where nothing is to be drawn."""
    ys = [y for line in lines for _, y in line.points] + [dot.at[1] for dot in dots]
    ys += [y for band in bands for _, low, high in band.points for y in (low, high)]
    xs = [x for line in lines for x, _ in line.points] + [dot.at[0] for dot in dots]
    xs += [x for band in bands for x, _, _ in band.points] + [mark.x for mark in marks]
    ys, xs = [y for y in ys if math.isfinite(y)], [x for x in xs if math.isfinite(x)]
    if not ys or not xs:
        return ""
    top = _TOP if marks else _BARE_TOP
    plot = _Plot(min(xs) if x_low is None else x_low, max(xs), 0.0 if from_zero else min(ys), max(ys), top)
    parts = [*plot.axes(x_name)]
    parts += [plot.band(band) for band in bands]
    parts += [piece for number, mark in enumerate(marks) for piece in plot.mark(mark, number)]
    parts += [plot.line(line) for line in lines]
    parts += [plot.dot(dot) for dot in dots]
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}"'
    return f'<svg class="chart" {box}>{"".join(parts)}</svg>'


class _Plot:
    """Places values on the drawing."""

    def __init__(self, x_low: float, x_high: float, y_low: float, y_high: float, top: int) -> None:
        self._top = top
        self._x = (x_low, x_high if x_high > x_low else x_low + 1.0)
        margin = (y_high - y_low) * 0.05
        self._y = (y_low if y_low == 0 else y_low - margin, y_high + margin if y_high > y_low else y_low + 1.0)

    def x(self, value: float) -> float:
        low, high = self._x
        return round(_LEFT + (value - low) / (high - low) * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        low, high = self._y
        return round(HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - self._top - _BOTTOM), 1)

    def axes(self, x_name: str) -> Iterable[str]:
        for value in ticks(*self._y, 4):
            y = self.y(value)
            yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
            yield f'<text class="tick" x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{value:g}</text>'
        for value in ticks(*self._x, 7):
            # A number below the right edge would be cut off there.
            side, at = ("end", WIDTH - 2) if self.x(value) > WIDTH - _RIGHT - 12 else ("middle", self.x(value))
            place = f'x="{at}" y="{HEIGHT - _BOTTOM + 15}" text-anchor="{side}"'
            yield f'<text class="tick" {place}>{value:g}</text>'
        yield f'<text class="tick" x="{WIDTH - _RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(x_name)}</text>'

    def line(self, line: Line) -> str:
        points = " ".join(f"{self.x(x)},{self.y(y)}" for x, y in line.points if math.isfinite(y))
        title = f"<title>{escape(line.title)}</title>" if line.title else ""
        return f'<polyline class="{line.style}" points="{points}">{title}</polyline>'

    def band(self, band: Band) -> str:
        upper = [f"{self.x(x)},{self.y(high)}" for x, _, high in band.points]
        lower = [f"{self.x(x)},{self.y(low)}" for x, low, _ in reversed(band.points)]
        return f'<polygon class="{band.style}" points="{" ".join([*upper, *lower])}"/>'

    def dot(self, dot: Dot) -> str:
        x, y = self.x(dot.at[0]), self.y(dot.at[1])
        return f'<circle class="{dot.style}" cx="{x}" cy="{y}" r="4"><title>{escape(dot.title)}</title></circle>'

    def mark(self, mark: Mark, number: int) -> Iterable[str]:
        x = self.x(mark.x)
        # Above the plot, so that no curve is covered, and on three heights, so that neighbours do not cover each other.
        y = 16 + 13 * (number % 3)
        yield f'<line class="mark" x1="{x}" x2="{x}" y1="{y - 10}" y2="{HEIGHT - _BOTTOM}"/>'
        side, at = ("end", x - 3) if x > WIDTH - 110 else ("start", x + 3)
        yield f'<text class="tick" x="{at}" y="{y}" text-anchor="{side}">{escape(mark.text)}</text>'


def ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round values between ``low`` and ``high``."""
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    unit = 10.0 ** math.floor(math.log10(span / count))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= span / count)
    first = math.ceil(low / step)
    return [round(number * step, 12) for number in range(first, math.floor(high / step) + 1)]
