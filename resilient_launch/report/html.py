"""The account of runs as one self-contained page: no network, light and dark, on a phone and on paper."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from resilient_launch.core.units import format_size
from resilient_launch.policy.partition import Label
from resilient_launch.report.accounts import AttemptAccount, RunReport
from resilient_launch.report.charts import Band, Dot, Line, Mark, chart
from resilient_launch.report.notes import notes, short_duration
from resilient_launch.report.resumes import resume_lines
from resilient_launch.report.style import SCRIPT, STYLE
from resilient_launch.report.text import NAMES, ORDER, amount, caveats, percent

MAX_RANKS_DRAWN = 16
MAX_CURVES = 3
MAX_DECISIONS = 50


def page(reports: Sequence[RunReport]) -> str:
    """The whole page. Nothing in it is taken from the environment, or from the arguments of the run."""
    title = reports[0].name if len(reports) == 1 else f"{len(reports)} runs"
    body = "".join(f"<article>{''.join(_run(report))}</article>" for report in reports)
    made = time.strftime("%F %T %z")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}: where the time went</title><style>{STYLE}</style></head>"
        f"<body>{body}<footer>made by rlaunch report, {made}</footer><script>{SCRIPT}</script></body></html>\n"
    )


def _run(report: RunReport) -> Iterator[str]:
    yield from _head(report)
    if report.allocated > 0:
        yield from _shares(report)
        yield from _timeline(report)
    found = notes(report)
    if found:
        yield "<h2>Notes</h2><ol class='notes'>"
        for note in found:
            line = f"<code>{escape(note.line)}</code>" if note.line else ""
            yield f"<li>{escape(note.what)}{line}</li>"
        yield "</ol>"
    yield from _attempts(report.attempts)
    yield from (f"<p>{escape(line)}</p>" for line in resume_lines(report.group_resumes))
    yield from _curves(report)
    yield from _step_times(report)
    yield from _checkpoints(report)
    yield from _decisions(report)
    said = caveats(report)
    if said:
        yield "<h2>What to know about these figures</h2><ul>"
        yield from (f"<li>{escape(each)}</li>" for each in said)
        yield "</ul>"


def _head(report: RunReport) -> Iterator[str]:
    state = "still running" if report.is_running else report.attempts[-1].cause if report.attempts else "no attempt yet"
    yield f"<h1>{escape(report.name)} <small>{escape(state.replace('_', ' '))}</small></h1>"
    steps = max([each.end_step for each in report.attempts if each.end_step is not None], default=0)
    mtbf = "-" if report.mtbf_s is None else short_duration(report.mtbf_s)
    low_s, high_s = report.mtbf_range_s
    figures = (
        ("goodput", percent(report.goodput), f"useful share of {amount(report.allocated, report.unit)}"),
        ("ETTR", percent(report.ettr), f"productive share of {short_duration(report.elapsed_s)}"),
        ("steps", f"{steps:,}", f"in {len(report.attempts)} attempts"),
        ("MTBF", mtbf, f"90 %: {short_duration(low_s)} to {short_duration(high_s)}" if report.mtbf_s else ""),
    )
    yield "<div class='figures'>"
    for name, value, detail in figures:
        yield f"<div><b>{escape(value)}</b><span>{name}</span><small>{escape(detail)}</small></div>"
    yield "</div>"


def _shares(report: RunReport) -> Iterator[str]:
    seconds, whole = report.unit_seconds, report.allocated
    shown = [label for label in ORDER if seconds[label] > 0]
    yield "<h2>Where the time went</h2><div class='stack'>"
    for label in shown:
        share = seconds[label] / whole
        title = f"{NAMES[label]}: {share:.1%}"
        yield f"<i class='c-{label.value}' style='flex-grow:{share:.6f}' title='{title}'></i>"
    yield "</div><table class='shares'><tbody>"
    for label in shown:
        yield (
            f"<tr><td><i class='key c-{label.value}'></i>{NAMES[label]}</td>"
            f"<td>{seconds[label] / whole:.1%}</td><td>{amount(seconds[label], report.unit)}</td></tr>"
        )
    yield "</tbody></table>"


def _timeline(report: RunReport) -> Iterator[str]:
    """A row for each attempt, over the wall clock. The script zooms by changing the drawings' view boxes."""
    begins_s = min(each.begins_s - each.queue_wait_s for each in report.attempts)
    ends_s = max(each.begins_s + each.allocated_s for each in report.attempts)
    whole_s = max(ends_s - begins_s, 1e-9)
    yield f"<h2>Attempts by time</h2><div class='timeline' data-seconds='{whole_s:.3f}'>"
    yield "<div class='tools'><button data-zoom='2'>+</button><button data-zoom='0.5'>−</button>"
    yield "<button data-zoom='0'>whole</button><span>drag to move, wheel to zoom</span></div>"
    for each in report.attempts:
        name = "-" if each.number is None else each.number
        yield f"<div class='row'><span>{name} {escape(each.cause.replace('_', ' '))}</span>"
        yield "<svg viewBox='0 0 1000 20' preserveAspectRatio='none' role='img' aria-label='attempt'>"
        if each.queue_wait_s > 0:
            yield _rect(each.begins_s - each.queue_wait_s, each.begins_s, Label.QUEUE_WAIT, begins_s, whole_s)
        for span in each.spans:
            yield _rect(span.start_s, span.end_s, span.label, begins_s, whole_s)
        yield "</svg></div>"
    clock = time.strftime("%F %T", time.localtime(begins_s))
    ends = f"<span>{clock}</span><span>+{short_duration(whole_s)}</span>"
    yield f"<div class='row axis'><span></span><div>{ends}</div></div>"
    yield "</div>"


def _rect(start_s: float, end_s: float, label: Label, begins_s: float, whole_s: float) -> str:
    x, width = (start_s - begins_s) / whole_s * 1000, (end_s - start_s) / whole_s * 1000
    title = f"{NAMES[label]}, {short_duration(end_s - start_s)}"
    shape = f"x='{x:.3f}' width='{width:.3f}' height='20'"
    return f"<rect class='c-{label.value}' {shape}><title>{title}</title></rect>"


def _attempts(attempts: Sequence[AttemptAccount]) -> Iterator[str]:
    header = ("attempt", "cause", "time", "goodput", "resumed at", "ended at", "rework", "Slurm", "torch", "nodes")
    yield "<h2>Attempts</h2><div class='scroll'><table><thead><tr>"
    yield "".join(f"<th>{name}</th>" for name in header) + "</tr></thead><tbody>"
    for each in attempts:
        cells = (
            "-" if each.number is None else each.number,
            each.cause.replace("_", " "),
            short_duration(each.allocated_s),
            percent(each.seconds[Label.USEFUL] / each.allocated_s if each.allocated_s > 0 else None),
            "-" if each.resume_step is None else each.resume_step,
            "-" if each.end_step is None else each.end_step,
            each.rework_steps,
            each.slurm_restart_count,
            each.torchelastic_restart_count,
            ", ".join(each.nodes[:4]) + (f" and {len(each.nodes) - 4} more" if len(each.nodes) > 4 else ""),
        )
        yield f"<tr title='{escape(each.why)}'>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"
    yield "</tbody></table></div>"


def _resumes(report: RunReport) -> list[Mark]:
    return [
        Mark(x=each.resume_step, text=f"resume {each.number}")
        for each in report.attempts
        if each.resume_step is not None and each.number
    ]


def _curves(report: RunReport) -> Iterator[str]:
    """What the script logged against steps, a line for each attempt, so that steps computed twice show as two."""
    names = sorted({name for _, curves in report.curves for name in curves.points}, key=lambda name: "loss" not in name)
    for name in names[:MAX_CURVES]:
        lines = [
            Line(points=sorted(curves.points[name].items()), style=f"line l{number % 6}", title=f"attempt {number}")
            for number, curves in report.curves
            if name in curves.points
        ]
        drawn = chart(title=name, x_name="step", lines=lines, marks=_resumes(report))
        if drawn:
            yield f"<h2>{escape(name.replace('_', ' '))}</h2>{drawn}"


def _step_times(report: RunReport) -> Iterator[str]:
    bands: list[Band] = []
    lines: list[Line] = []
    for number, points in report.bands.items():
        for rank in sorted({point.rank for point in points})[:MAX_RANKS_DRAWN]:
            mine = sorted((point for point in points if point.rank == rank), key=lambda point: point.step)
            bands.append(Band(points=[(p.step, p.low_s, p.high_s) for p in mine], style="band"))
            title = f"attempt {number}, rank {rank}"
            lines.append(Line(points=[(p.step, p.median_s) for p in mine], style=f"line l{rank % 6}", title=title))
    drawn = chart(
        title="step time", x_name="step", lines=lines, bands=bands, marks=_resumes(report), from_zero=True, x_low=0.0
    )
    if drawn:
        yield f"<h2>Step time by rank, seconds</h2>{drawn}<p>Lines are medians; bands hold eight of ten steps.</p>"


def _checkpoints(report: RunReport) -> Iterator[str]:
    dots = []
    for save in report.saves:
        if save.status not in ("durable", "failed"):
            continue
        style = "bad" if save.status == "failed" else "emergency" if save.reason == "notice" else "regular"
        size = "" if save.num_bytes is None else f", {format_size(save.num_bytes)}"
        title = f"step {save.step}, {save.reason}: {save.status}, {short_duration(save.blocking_s)} blocking{size}"
        dots.append(Dot(at=(save.step, save.blocking_s), style=f"dot {style}", title=title))
    drawn = chart(title="checkpoints", x_name="step", dots=dots, marks=_resumes(report), from_zero=True, x_low=0.0)
    if drawn:
        key = "<p class='legend'><i class='dot regular'></i>regular <i class='dot emergency'></i>emergency "
        yield f"<h2>Checkpoints, seconds that training waited</h2>{drawn}{key}<i class='dot bad'></i>failed</p>"


def _intervals(report: RunReport) -> Iterator[str]:
    """The interval that stood and the one that was best for what had been measured, decision by decision."""
    solved = [
        (float(each["t"]), float(each["interval_s"]), float(each["target_s"]), str(each["why"]))
        for each in report.decisions
        if all(isinstance(each.get(name), int | float) for name in ("interval_s", "target_s"))
    ]
    if len(solved) < 2:
        return
    first_s = solved[0][0]
    time_s, time_name = _scale(solved[-1][0] - first_s)
    unit_s, unit = _scale(max(max(stands_s, best_s) for _, stands_s, best_s, _ in solved))
    stands = _held([((at_s - first_s) / time_s, interval_s / unit_s) for at_s, interval_s, _, _ in solved])
    best = _held([((at_s - first_s) / time_s, target_s / unit_s) for at_s, _, target_s, _ in solved])
    dots = [
        Dot(at=((at_s - first_s) / time_s, interval_s / unit_s), style="dot regular", title=why)
        for at_s, interval_s, _, why in solved
    ]
    lines = [
        Line(points=best, style="line l1", title="the best one"),
        Line(points=stands, style="line l0", title="the one that stands"),
    ]
    drawn = chart(title="checkpoint interval", x_name=time_name, lines=lines, dots=dots, from_zero=True)
    yield f"<h2>Checkpoint interval, {unit}</h2>{drawn}<p class='legend'><i class='dot l0'></i>the one that stands "
    yield "<i class='dot l1'></i>the best one for what was measured; it moves by a quarter at most</p>"


def _held(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Every value until the next one comes."""
    held = [point for (x, y), (until, _) in pairwise(points) for point in ((x, y), (until, y))]
    return [*held, points[-1]]


def _scale(seconds: float) -> tuple[float, str]:
    """The unit that suits durations up to ``seconds``."""
    return (3600.0, "hours") if seconds > 7200 else (60.0, "minutes") if seconds > 300 else (1.0, "seconds")


def _decisions(report: RunReport) -> Iterator[str]:
    if not report.decisions:
        return
    yield from _intervals(report)
    yield "<h2>Decisions</h2><div class='scroll'><table><thead><tr><th>when</th><th>what</th><th>why</th></tr></thead>"
    yield "<tbody>"
    for each in list(report.decisions)[:MAX_DECISIONS]:
        clock = time.strftime("%F %T", time.localtime(float(each["t"])))
        what, why = escape(str(each["what"])[:200]), escape(str(each["why"])[:400])
        yield f"<tr><td>{clock}</td><td>{what}</td><td class='words'>{why}</td></tr>"
    yield "</tbody></table></div>"
