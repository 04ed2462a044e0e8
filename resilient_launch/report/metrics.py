"""Figures for monitoring, in the text format that Prometheus' textfile collector and OpenMetrics readers both take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from resilient_launch.policy.partition import ALLOCATED
from resilient_launch.report.accounts import RunReport

_GAUGES: tuple[tuple[str, str, Callable[[RunReport], float | None]], ...] = (
    ("rlaunch_goodput_ratio", "Useful share of the allocated time.", lambda report: report.goodput),
    ("rlaunch_ettr_ratio", "Productive share of the wall-clock time, the queue included.", lambda report: report.ettr),
    ("rlaunch_step", "Completed steps.", lambda report: _step(report)),
    ("rlaunch_attempts", "Attempts so far.", lambda report: float(len(report.attempts))),
    ("rlaunch_interruptions", "Interruptions so far.", lambda report: float(report.num_interruptions)),
    ("rlaunch_running", "Whether an attempt is running.", lambda report: float(report.is_running)),
    (
        "rlaunch_last_checkpoint_timestamp_seconds",
        "When the newest durable checkpoint was begun.",
        lambda report: max((save.at_s for save in report.saves if save.status == "durable"), default=None),
    ),
    ("rlaunch_mtbf_seconds", "Mean allocated time between interruptions.", lambda report: report.mtbf_s),
)


def exposition(reports: Sequence[RunReport]) -> str:
    """All figures of all runs as gauges; a figure that is not known is left out. Ends with OpenMetrics' end mark."""
    lines = []
    for name, text, value in _GAUGES:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        for report in reports:
            figure = value(report)
            if figure is not None:
                lines.append(f'{name}{{run="{report.name}"}} {figure!r}')
    name = "rlaunch_allocated_unit_seconds"
    lines += [f"# HELP {name} Where the allocated GPU-seconds or CPU-seconds went.", f"# TYPE {name} gauge"]
    for report in reports:
        seconds = report.unit_seconds
        for label in ALLOCATED:
            labels = f'run="{report.name}",unit="{report.unit}",component="{label.value}"'
            lines.append(f"{name}{{{labels}}} {seconds[label]!r}")
    return "\n".join([*lines, "# EOF", ""])


def _step(report: RunReport) -> float | None:
    steps = [each.end_step for each in report.attempts if each.end_step is not None]
    return float(max(steps)) if steps else None
