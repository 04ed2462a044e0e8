"""What ``plan interval`` and ``simulate job`` answer, as one self-contained page: no network, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from resilient_launch.core.units import format_duration
from resilient_launch.lab.simulate.svg import curve
from resilient_launch.report.style import STYLE

_COLOURS = {
    "useful": "useful",
    "checkpoint": "checkpoint",
    "lost": "rework",
    "emergency": "emergency",
    "restart": "restart",
}
"""Components of a played run, by the report's labels for the same."""


def plan_page(answer: Mapping[str, Any]) -> str:
    """The intervals by each formula, the curve, and what they rest on."""
    inputs = answer["inputs"]
    body = ["<h1>How often to save</h1>", _table(("formula", "interval", "goodput"), _intervals(answer["intervals"]))]
    body.append(f"<h2>Goodput by interval</h2>{curve(answer['curve'], answer['flat'])}")
    body += [f"<p>{escape(warning)}</p>" for warning in answer["warnings"]]
    rows = [
        (name.removesuffix("_s").replace("_", " "), _value(name, value))
        for name, value in inputs.items()
        if value is not None
    ]
    body.append(f"<h2>For</h2>{_table(('input', 'value'), rows)}")
    return _page("How often to save", body)


def job_page(rows: Sequence[Mapping[str, Any]], num_runs: int) -> str:
    """Goodput and shares of each interval that was played."""
    header = ("interval", "goodput", "±", *_COLOURS, "attempts")
    cells, bars = [], []
    for row in rows:
        every = row["name"] if row["interval_s"] is None else _text(row["interval_s"])
        error = "-" if row["goodput_error"] is None else f"{row['goodput_error']:.3f}"
        shares = {name: row["shares"].get(name, 0.0) for name in _COLOURS}
        shown = (f"{share:.3f}" for share in shares.values())
        cells.append((every, f"{row['goodput']:.3f}", error, *shown, f"{row['attempts']:.1f}"))
        parts = "".join(
            f"<i class='c-{_COLOURS[name]}' style='flex-grow:{share:.6f}' title='{name}: {share:.1%}'></i>"
            for name, share in shares.items()
        )
        bars.append(f"<p>{escape(every)}</p><div class='stack'>{parts}</div>")
    keys = " ".join(f"<i class='key c-{colour}'></i>{name}" for name, colour in _COLOURS.items())
    title = "Where the time of a run goes"
    about = f"<p>means of {num_runs} runs; ± is half a 95 % confidence interval</p>"
    return _page(title, [f"<h1>{title}</h1>", *bars, f"<p class='legend'>{keys}</p>", _table(header, cells), about])


def _intervals(intervals: Mapping[str, Mapping[str, float | None]]) -> Iterable[tuple[str, str, str]]:
    for name, each in intervals.items():
        every_s, goodput = each["interval_s"], each["goodput"]
        every = "never" if every_s is None else _text(every_s)
        yield name.replace("_", " "), every, "-" if goodput is None else f"{goodput:.4f}"


def _value(name: str, value: float) -> str:
    return _text(value) if name.endswith("_s") else f"{value:g}"


def _text(seconds: float) -> str:
    return format_duration(round(seconds) if seconds >= 10 else round(seconds, 2))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = ("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"


def _page(title: str, body: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )
