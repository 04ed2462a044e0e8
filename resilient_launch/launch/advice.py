"""What is worth knowing at submit: maintenance in the way, and saves that take longer than the notice."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import replace

from resilient_launch.cluster.base import Reservation
from resilient_launch.cluster.hostlist import expand
from resilient_launch.cluster.slurm import SlurmCommands
from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core.errors import RefusedError, RlaunchError
from resilient_launch.core.events import read_events
from resilient_launch.core.paths import RunPaths
from resilient_launch.core.units import format_duration
from resilient_launch.launch.plan import time_limit_s
from resilient_launch.policy.drain import fitting_limit_s

SPARE_S = 60.0
"""A shortened limit leaves so much more than the signal's lead, or a run would save before it began."""
SAVE_MARGIN = 1.5
"""How much longer than the longest save so far a notice should be."""


def in_the_way(config: LaunchConfig, scheduler: SlurmCommands, *, now: float) -> Reservation | None:
    """The first maintenance window that the run's time limit would cross and that leaves it too few other nodes.

    Such a job pends until the window is over, whatever else is free. None when it fits, or Slurm does not say.
    """
    limit_s = time_limit_s(config)
    end = math.inf if limit_s is None else now + limit_s
    try:
        crossed = [each for each in scheduler.reservations() if each.is_maintenance and now < each.end_time]
        names = set(scheduler.nodes(config.partition or "")) if crossed else set()
    except RlaunchError:
        return None
    for each in sorted(crossed, key=lambda reservation: reservation.start_time):
        if each.start_time < end and len(names - set(expand(each.nodes))) < config.nodes.min:
            return each
    return None


def explain(config: LaunchConfig, window: Reservation, *, now: float) -> str:
    """Why the run will wait for the window's end, and what to do about it."""
    limit_s = time_limit_s(config)
    limit = "no time limit" if limit_s is None else f"a time limit of {format_duration(limit_s)}"
    starts = (
        "is open" if window.start_time <= now else f"starts in {format_duration(float(window.start_time - int(now)))}"
    )
    fitting = _fitting(config, window, now)
    hint = f"--fit-maintenance, for a limit of {format_duration(fitting)}" if fitting else "submit it after the window"
    return f"{limit} crosses the maintenance {window.name}, which {starts}: the job will pend until it is over; {hint}"


def fit(config: LaunchConfig, window: Reservation, *, now: float) -> LaunchConfig:
    """The configuration with a time limit that ends before the window. Raises RefusedError when too little is left."""
    fitting = _fitting(config, window, now)
    if fitting is None:
        raise RefusedError(
            f"maintenance {window.name}",
            why=f"starts too soon for a run whose signal leads by {format_duration(config.signal_lead_s)}",
            hint="submit without --fit-maintenance, and it waits for the window's end",
        )
    return replace(config, time_s=fitting)


def _fitting(config: LaunchConfig, window: Reservation, now: float) -> float | None:
    least_s = config.signal_lead_s + SPARE_S
    return fitting_limit_s(now=now, start=window.start_time, asked_s=time_limit_s(config), least_s=least_s)


def slow_saves(config: LaunchConfig, paths: RunPaths, scheduler: SlurmCommands) -> list[str]:
    """Where this run's own saves, as measured in earlier attempts, take longer than the site gives notice; in words."""
    seconds = [
        float(event["blocking_s"])
        for event in read_events(sorted(paths.events.glob("a*.w00000.jsonl")))
        if event["kind"] == "checkpoint" and event.get("status") == "durable" and "blocking_s" in event
    ]
    if not seconds:
        return []
    needed = max(seconds) * SAVE_MARGIN
    grace = kill_wait = None
    with contextlib.suppress(RlaunchError):
        if config.partition and "," not in config.partition:
            grace = _seconds(scheduler.partition_setting(config.partition, "GraceTime"))
        kill_wait = scheduler.kill_wait_s()
    return too_short(needed, max(seconds), grace_s=grace, kill_wait_s=kill_wait, lead_s=config.signal_lead_s)


def too_short(
    needed_s: float, longest_s: float, *, grace_s: float | None, kill_wait_s: float | None, lead_s: float
) -> list[str]:
    """One sentence for each kind of notice that is shorter than a save needs; None is a length that is not known."""
    known: Sequence[tuple[float | None, str]] = (
        (grace_s, "a preemption's GraceTime"),
        (kill_wait_s, "KillWait, all that a cancelled run has,"),
        (lead_s, "signal_lead"),
    )
    return [
        f"a save took up to {longest_s:.1f} s, and {what} is {length_s:.0f} s: what is newer than the last regular "
        "checkpoint may be lost"
        for length_s, what in known
        if length_s is not None and length_s < needed_s
    ]


def notes(config: LaunchConfig, paths: RunPaths, scheduler: SlurmCommands) -> list[str]:
    """Everything worth saying, in words; empty where there is nothing, or Slurm does not say."""
    now = time.time()
    window = in_the_way(config, scheduler, now=now)
    said = [explain(config, window, now=now)] if window is not None else []
    return said + slow_saves(config, paths, scheduler)


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isdigit() else None
