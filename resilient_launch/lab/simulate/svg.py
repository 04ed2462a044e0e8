"""A curve of goodput over the interval, as one SVG file without any dependency."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from resilient_launch.core.units import format_duration

_WIDTH, _HEIGHT, _MARGIN = 640, 320, 48


def curve(points: Sequence[Mapping[str, float]], flat: Mapping[str, float | None]) -> str:
    """``points`` have interval_s and goodput, shortest first; ``flat`` is shaded: low_s to high_s, None for no end."""
    low, high = math.log(points[0]["interval_s"]), math.log(points[-1]["interval_s"])
    top = max(point["goodput"] for point in points) or 1.0

    def x(interval_s: float) -> float:
        share = (math.log(interval_s) - low) / (high - low)
        return _MARGIN + min(max(share, 0.0), 1.0) * (_WIDTH - 2 * _MARGIN)

    def y(goodput: float) -> float:
        return _HEIGHT - _MARGIN - goodput / top * (_HEIGHT - 2 * _MARGIN)

    line = " ".join(f"{x(point['interval_s']):.1f},{y(point['goodput']):.1f}" for point in points)
    left, right = x(flat["low_s"] or 0.0), x(flat["high_s"] or points[-1]["interval_s"])
    ticks = [point["interval_s"] for point in points[:: max(1, len(points) // 6)]]
    below = _HEIGHT - _MARGIN + 18
    labels = "".join(
        f'<text x="{x(tick):.1f}" y="{below}" text-anchor="middle">{format_duration(float(f"{tick:.2g}"))}</text>'
        for tick in ticks
    )
    title = f"goodput, best {top:.3f}; shaded: within 1 % of it"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="11"><title>Goodput by checkpoint interval</title>'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
        f'<rect x="{left:.1f}" y="{_MARGIN}" width="{right - left:.1f}" height="{_HEIGHT - 2 * _MARGIN}" '
        f'fill="#dcebdc"/><polyline points="{line}" fill="none" stroke="#1f5fa8" stroke-width="2"/>'
        f'<text x="{_MARGIN}" y="{_MARGIN - 12}">{title}</text>{labels}</svg>\n'
    )
