"""The account of a run as text for a terminal: bars, a table of attempts, checkpoints, notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from resilient_launch.core.causes import Cause
from resilient_launch.core.units import format_size
from resilient_launch.policy.partition import Label
from resilient_launch.report.accounts import AttemptAccount, RunReport
from resilient_launch.report.notes import notes, short_duration
from resilient_launch.report.resumes import difference_lines, resume_lines

NAMES = {
    Label.QUEUE_WAIT: "queue wait",
    Label.START_UP: "start-up",
    Label.RESTART: "restart",
    Label.RESTORE: "restore",
    Label.USEFUL: "useful steps",
    Label.REWORK: "rework",
    Label.CHECKPOINT: "checkpoint blocking",
    Label.HANG: "hang",
    Label.STRAGGLER: "straggler excess",
    Label.EMERGENCY: "emergency save",
    Label.IDLE_TAIL: "idle tail",
    Label.UNKNOWN: "unknown",
}
ORDER = (Label.USEFUL, *(label for label in NAMES if label not in (Label.USEFUL, Label.QUEUE_WAIT)))
BLAMED = frozenset({Cause.NODE_FAILURE, Cause.HANG, Cause.CRASH})
"""Causes that may be a node's fault."""
_COLOURS = {Label.USEFUL: "32", Label.REWORK: "31", Label.HANG: "31", Label.STRAGGLER: "31", Label.UNKNOWN: "2"}
_BAR = 28
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FULL = "█"


@dataclass(frozen=True)
class Style:
    """How text may be decorated: colour on a terminal, bars of ASCII where the encoding has no better."""

    colour: bool = False
    unicode: bool = True

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text


def render(report: RunReport, style: Style) -> str:
    """One run on one screen of 80 columns, more lines where it had more attempts."""
    return "\n".join(_lines(report, style))


def summary(reports: Sequence[RunReport]) -> str:
    """Many runs, the one that wasted most first, and the nodes that failing attempts had."""
    order = sorted(reports, key=lambda each: (each.goodput or 0.0) * each.allocated - each.allocated)
    header = ("run", "goodput", "ETTR", "allocated", "wasted", "most to", "attempts", "MTBF")
    rows = []
    for each in order:
        seconds = each.unit_seconds
        lost = {label: seconds[label] for label in ORDER if label is not Label.USEFUL}
        worst = max(lost, key=lambda label: lost[label])
        rows.append(
            (
                each.name,
                percent(each.goodput),
                percent(each.ettr),
                amount(each.allocated, each.unit),
                amount(each.allocated - seconds[Label.USEFUL], each.unit),
                NAMES[worst] if lost[worst] > 0 else "-",
                str(len(each.attempts)),
                "-" if each.mtbf_s is None else short_duration(each.mtbf_s),
            )
        )
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]
    return "\n".join([*lines, *_failing_nodes(reports)])


def _failing_nodes(reports: Sequence[RunReport]) -> Iterator[str]:
    """Nodes by how often an attempt that had them failed."""
    seen: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for each in reports:
        for attempt in each.attempts:
            seen.update(attempt.nodes)
            if attempt.cause in BLAMED:
                failed.update(attempt.nodes)
    worst = sorted(failed, key=lambda node: (-failed[node] / seen[node], -failed[node], node))[:5]
    if worst:
        yield ""
        yield "nodes of attempts that failed: " + ", ".join(
            f"{node} ({failed[node]} of {seen[node]})" for node in worst
        )


def amount(unit_seconds: float, unit: str) -> str:
    """GPU-seconds in GPU-hours; CPU-seconds as they are, while they are few."""
    if unit == "CPU":
        return f"{unit_seconds:,.0f} CPU-s" if unit_seconds >= 100 else f"{unit_seconds:.1f} CPU-s"
    hours = unit_seconds / 3600
    return f"{hours:,.1f} {unit}-h" if hours >= 10 else f"{hours:.3f} {unit}-h"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _lines(report: RunReport, style: Style) -> Iterator[str]:
    yield from _headline(report, style)
    if report.allocated > 0:
        yield ""
        yield from _partition(report, style)
    if report.attempts:
        yield ""
        yield from _attempts(report.attempts)
        for line in resume_lines(report.group_resumes):
            yield from _wrapped(line, "  ")
    yield ""
    yield from _failures(report)
    yield from _checkpoints(report)
    found = notes(report)
    if found:
        yield ""
        yield style.paint("Notes", "1")
        for number, note in enumerate(found, 1):
            yield from _wrapped(f"{number}. {note.what}", "   ")
            if note.line:
                yield "   " + style.paint(note.line, "36")
    said = caveats(report)
    if said:
        yield ""
    for each in said:
        yield from _wrapped(f"note: {each}", "  ")


def _headline(report: RunReport, style: Style) -> Iterator[str]:
    state = "still running" if report.is_running else report.attempts[-1].cause if report.attempts else "no attempt yet"
    yield f"{style.paint(report.name, '1')}: {state}, {_count(len(report.attempts), 'attempt')}"
    if report.goodput is None:
        yield "nothing was allocated yet: no goodput"
        return
    steps = max([each.end_step for each in report.attempts if each.end_step is not None], default=0)
    yield (
        f"goodput {style.paint(percent(report.goodput), '1;32')} of {amount(report.allocated, report.unit)}"
        f" allocated, ETTR {percent(report.ettr)} of {short_duration(report.elapsed_s)}, step {steps}"
    )


def _partition(report: RunReport, style: Style) -> Iterator[str]:
    seconds, whole = report.unit_seconds, report.allocated
    shown = [label for label in ORDER if seconds[label] > 0]
    width = max(len(amount(seconds[label], report.unit)) for label in [*shown, Label.QUEUE_WAIT])
    for label in shown:
        share = seconds[label] / whole
        bar = style.paint(_bar(share, style).ljust(_BAR), _COLOURS.get(label, "33"))
        yield f"{NAMES[label]:<19} {bar} {share:>6.1%} {amount(seconds[label], report.unit):>{width}}"
    if seconds[Label.QUEUE_WAIT] > 0:
        wait = short_duration(seconds[Label.QUEUE_WAIT])
        yield f"{'queue wait':<19} {wait}, in which nothing was allocated"
    if not seconds[Label.STRAGGLER] and not report.has_local_times:
        yield "straggler excess    not measured: no rank timed its own work (run.local_work)"


def _bar(share: float, style: Style) -> str:
    if not style.unicode:
        return "#" * max(round(share * _BAR), 1)
    eighths = max(round(share * _BAR * 8), 1)
    return _FULL * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _attempts(attempts: Sequence[AttemptAccount]) -> Iterator[str]:
    header = ("attempt", "cause", "time", "goodput", "resume", "end", "rework", "Slurm", "torch", "nodes")
    rows: list[tuple[str, ...]] = [
        (
            "-" if each.number is None else str(each.number),
            each.cause,
            short_duration(each.allocated_s),
            percent(each.seconds[Label.USEFUL] / each.allocated_s if each.allocated_s > 0 else None),
            "-" if each.resume_step is None else str(each.resume_step),
            "-" if each.end_step is None else str(each.end_step),
            str(each.rework_steps),
            str(each.slurm_restart_count),
            str(each.torchelastic_restart_count),
            _node_names(each.nodes),
        )
        for each in attempts
    ]
    if len(rows) > 40:
        rows = [*rows[:20], ("…", f"{len(rows) - 40} more", *[""] * 8), *rows[-20:]]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    left = (0, 1, 9)
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield " ".join(cells).rstrip()


def _node_names(nodes: Sequence[str]) -> str:
    return ",".join(nodes) if len(nodes) <= 2 else f"{nodes[0]}+{len(nodes) - 1}"


def _failures(report: RunReport) -> Iterator[str]:
    low_s, high_s = report.mtbf_range_s
    if report.exposure_s <= 0:
        return
    high = "" if report.num_interruptions == 0 else f" to {short_duration(high_s)}"
    word = _count(report.num_interruptions, "interruption")
    mean = "no MTBF yet" if report.mtbf_s is None else f"MTBF {short_duration(report.mtbf_s)}"
    least = f"at least {short_duration(low_s)}" if report.num_interruptions == 0 else f"{short_duration(low_s)}{high}"
    yield f"{word} in {short_duration(report.exposure_s)}: {mean} (90 %: {least})"


def _checkpoints(report: RunReport) -> Iterator[str]:
    figures = report.checkpoints
    if not figures.num_durable and not figures.num_failed:
        yield "no checkpoint was written"
        return
    parts = [_count(figures.num_durable, "checkpoint")]
    if figures.num_emergency:
        parts.append(f"{figures.num_emergency} of them emergency")
    if figures.num_failed:
        parts.append(f"{figures.num_failed} failed")
    if figures.interval_s is not None:
        parts.append(f"every {short_duration(figures.interval_s)}")
    yield ", ".join(parts)
    details = []
    if figures.blocking_mean_s is not None and figures.blocking_max_s is not None:
        blocking = f"{short_duration(figures.blocking_mean_s)} (longest {short_duration(figures.blocking_max_s)})"
        details.append(f"blocking {blocking}")
    if figures.drain_mean_s is not None:
        details.append(f"drain {short_duration(figures.drain_mean_s)}")
    if figures.size_bytes is not None:
        details.append(f"size {format_size(figures.size_bytes)}")
    if figures.bandwidth is not None:
        details.append(f"{format_size(int(figures.bandwidth))}/s")
    if details:
        yield "  " + ", ".join(details)


def caveats(report: RunReport) -> list[str]:
    """What qualifies the figures: damage, disagreement, what was not there."""
    damage = report.damage
    found = [*difference_lines(report.differences), *report.warnings]
    found += [f"attempt {each.number}: {each.disagreement}" for each in report.attempts if each.disagreement]
    sources = {each.source for each in report.attempts}
    if sources == {"events"}:
        found.append("Slurm's accounting was not there: the allocation is what the attempts themselves say")
    elif len(sources) > 1:
        found.append("Slurm's accounting lacks some attempts: their allocation is what they themselves say")
    if damage.num_damaged_lines:
        found.append(f"{_count(damage.num_damaged_lines, 'damaged line')} passed over")
    if damage.num_repeated_steps:
        found.append(f"{_count(damage.num_repeated_steps, 'step')} told twice, counted once")
    if damage.unknown_kinds:
        found.append(f"events of kinds that this version does not know: {', '.join(sorted(damage.unknown_kinds)[:5])}")
    if damage.newer_schema:
        found.append(f"{_count(damage.newer_schema, 'event')} of another schema version")
    if damage.unreadable:
        found.append(f"{_count(len(damage.unreadable), 'unreadable file')}: {'; '.join(damage.unreadable[:3])}")
    return found


def _wrapped(text: str, indent: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 80, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
