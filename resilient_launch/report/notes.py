"""What would save most: changes to the configuration, each with what it is worth and the exact line."""

from __future__ import annotations

import math
from dataclasses import dataclass

from resilient_launch.core.causes import Cause
from resilient_launch.core.units import format_duration
from resilient_launch.policy import interval
from resilient_launch.policy.partition import Label
from resilient_launch.report.accounts import RunReport

MAX_NOTES = 3
WORTH_SAYING = 0.005
"""Share of the allocation below which a change is not worth a line."""

STRAGGLER_WORTH_SAYING = 0.02
"""Some rank is always the slowest: less than this is the spread of equal machines."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """One change. ``saves`` is the share of allocated time that it would give back, ``line`` what to write where."""

    saves: float
    what: str
    line: str


def notes(report: RunReport) -> tuple[Note, ...]:
    """The changes that would save most, the greatest first, three at most."""
    if report.allocated <= 0:
        return ()
    found = [*_interval(report), *_lead(report), *_restart(report), *_hang(report), *_straggler(report)]
    worth = [note for note in found if note.saves >= WORTH_SAYING]
    return tuple(sorted(worth, key=lambda note: -note.saves)[:MAX_NOTES])


def share(report: RunReport, *labels: Label) -> float:
    """The part of the allocation that went to ``labels``."""
    seconds = report.unit_seconds
    return math.fsum(seconds[label] for label in labels) / report.allocated if report.allocated > 0 else 0.0


def _interval(report: RunReport) -> list[Note]:
    """The interval in force against the optimum of what was measured."""
    figures, mtbf_s = report.checkpoints, report.mtbf_s
    current_s, cost_s = figures.interval_s, figures.blocking_mean_s
    if mtbf_s is None or current_s is None or not cost_s:
        return []
    restart_s = _restart_s(report)
    hard = [
        each for each in report.attempts if each.cause in tuple(Cause) and each.cause not in ("finished", "cancelled")
    ]
    noticed = sum(each.seconds[Label.EMERGENCY] > 0 for each in hard) / len(hard) if hard else 0.0
    best_s = interval.exact(cost_s, mtbf_s, notice=min(noticed, 0.99))
    if not math.isfinite(best_s) or 0.8 < best_s / current_s < 1.25:
        return []

    def worth(every_s: float) -> float:
        return interval.goodput(every_s, cost_s=cost_s, mtbf_s=mtbf_s, restart_s=restart_s, notice=min(noticed, 0.99))

    gain = worth(best_s) - worth(current_s)
    rounded_s = _round(best_s)
    what = (
        f"a checkpoint every {_about(current_s)}; the optimum for {_about(cost_s)} of blocking and an MTBF of "
        f"{_about(mtbf_s)} is {_about(best_s)}: {gain:+.1%}"
    )
    return [Note(saves=gain, what=what, line=f"checkpoint: {{every: {_plain(rounded_s)}}}")]


def _lead(report: RunReport) -> list[Note]:
    """Time limits that came without an emergency save cost rework that a longer lead avoids."""
    if report.config is None:
        return []
    missed = [each for each in report.attempts if each.cause == Cause.TIME_LIMIT and not each.seconds[Label.EMERGENCY]]
    following = {each.number + 1 for each in missed if each.number is not None}
    lost = math.fsum(each.seconds[Label.REWORK] * each.units for each in report.attempts if each.number in following)
    saves = lost / report.allocated
    needed_s = 60 * math.ceil((2 * (report.checkpoints.blocking_max_s or 0) + report.config.signal_lead_s) / 60)
    what = f"time limits without an emergency save: {len(missed)}; rework after them took {saves:.1%} of the time"
    return [Note(saves=saves, what=what, line=f"signal_lead: {format_duration(needed_s)}")] if missed else []


def _restart(report: RunReport) -> list[Note]:
    """Getting going again, over and over, because the time limit is short beside it."""
    limited = [each for each in report.attempts if each.cause == Cause.TIME_LIMIT]
    if report.config is None or not limited or report.config.time_s is None or math.isinf(report.config.time_s):
        return []
    following = {each.number + 1 for each in limited if each.number is not None}
    lost = math.fsum(
        (each.seconds[Label.RESTART] + each.seconds[Label.RESTORE] + each.seconds[Label.IDLE_TAIL]) * each.units
        for each in report.attempts
        if each.number in following
    )
    saves = lost / report.allocated / 2
    what = (
        f"getting going again after time limits ({len(limited)}) took {lost / report.allocated:.1%} of the time; "
        f"a limit twice as long halves that: {saves:+.1%}"
    )
    return [Note(saves=saves, what=what, line=f"time: {format_duration(2 * report.config.time_s)}")]


def _hang(report: RunReport) -> list[Note]:
    hangs_s = [each.seconds[Label.HANG] for each in report.attempts if each.seconds[Label.HANG] > 0]
    if not hangs_s:
        return []
    lost = share(report, Label.HANG)
    attempts = "one attempt" if len(hangs_s) == 1 else f"{len(hangs_s)} attempts"
    what = f"{attempts} stood still before being ended, for {lost:.1%} of the time"
    return [Note(saves=lost, what=what, line=_hang_line(report, max(hangs_s)))]


def _hang_line(report: RunReport, longest_s: float) -> str:
    if nodes := _worst_nodes(report):
        return f"sbatch: {{exclude: {nodes}}}"
    if report.config is None:
        return ""
    hang = report.config.hang
    if not hang.enabled:
        return "hang: {enabled: true}"
    shorter_s = max(hang.ceiling_s / 2, hang.floor_s)
    return f"hang: {{ceiling: {format_duration(shorter_s)}}}" if longest_s > shorter_s else ""


def _straggler(report: RunReport) -> list[Note]:
    lost = share(report, Label.STRAGGLER)
    what = f"the slowest rank kept the others waiting for {lost:.1%} of the time"
    return [Note(saves=lost, what=what, line="")] if lost >= STRAGGLER_WORTH_SAYING else []


def _worst_nodes(report: RunReport) -> str:
    """Nodes that every attempt which hung or failed had, and no other attempt."""
    bad = [set(each.nodes) for each in report.attempts if each.cause in (Cause.HANG, Cause.NODE_FAILURE)]
    good = {
        node for each in report.attempts if each.cause not in (Cause.HANG, Cause.NODE_FAILURE) for node in each.nodes
    }
    return ",".join(sorted(set.intersection(*bad) - good)) if len(bad) > 1 else ""


def _restart_s(report: RunReport) -> float:
    again = [each for each in report.attempts if each.number]
    lost = [each.seconds[Label.RESTART] + each.seconds[Label.RESTORE] for each in again]
    return math.fsum(lost) / len(lost) if lost else 0.0


def _round(seconds: float) -> float:
    """Two significant digits: an interval is no more certain than what it was computed from."""
    unit = 10.0 ** (math.floor(math.log10(max(seconds, 1.0))) - 1)
    coarse = max(round(seconds / unit) * unit, 1.0)
    return 60.0 * round(coarse / 60) if coarse >= 600 else float(round(coarse))


def _plain(seconds: float) -> str:
    return f"{seconds / 60:.0f}m" if seconds >= 600 else f"{seconds:.0f}s"


def _about(seconds: float) -> str:
    """A duration for reading: two units at most."""
    return short_duration(seconds)


def short_duration(seconds: float) -> str:
    """``seconds`` to about three digits: 0.15 s, 12.3 s, 4.2 min, 3.1 h, 12 d."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
