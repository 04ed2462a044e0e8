"""Where an attempt's time went: every second of its allocation gets exactly one label.

Times are seconds on one clock. Labels are painted over each other in order, so that a second can never count twice, and
the sum is the allocation by construction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]

PATIENCE_S = 10.0
"""A tail without progress that is shorter than this, or than five steps, is a step cut off and no hang."""
SLOW_FIRST_STEP = 2.0
"""A first step this many times the median holds warm-up, which counts as getting started."""


class Label(StrEnum):
    """What a second of an allocation was spent on. Queue wait is time, but nobody's GPU time."""

    QUEUE_WAIT = "queue_wait"
    START_UP = "start_up"
    """From the nodes to the first step of the run, the restore apart."""
    RESTART = "restart"
    """As start-up, in every later attempt and worker group."""
    RESTORE = "restore"
    USEFUL = "useful"
    REWORK = "rework"
    """Steps that had been completed before, and steps cut off before they were complete."""
    CHECKPOINT = "checkpoint"
    HANG = "hang"
    """From the last progress to the abort."""
    STRAGGLER = "straggler"
    """What the slowest rank's own work in a step exceeds the median rank's by, where windows carry ``local_s``."""
    EMERGENCY = "emergency"
    IDLE_TAIL = "idle_tail"
    """After the ranks have left."""
    UNKNOWN = "unknown"


ALLOCATED: tuple[Label, ...] = tuple(label for label in Label if label is not Label.QUEUE_WAIT)
"""The labels that share out an allocation."""


@dataclass(frozen=True, kw_only=True)
class Save:
    """One blocking save. ``end_s`` is None when no end of it is known; ``step`` counts completed steps in it."""

    step: int
    begin_s: float
    end_s: float | None
    is_emergency: bool


@dataclass(frozen=True, kw_only=True)
class Group:
    """One worker group: from the end of the one before it (or the attempt's start) to ``end_s``.

    ``steps`` are the indices, counted before the step, of the steps whose ends ``ends_s`` are known; a step that is
    missing between two others is part of the later one's time. ``loop_s`` is when the step loop was entered.
    ``reached`` is a count of completed steps that others vouch for, above what ``steps`` shows; it began with
    ``resumed`` of them. ``progress_s`` is the last sign of life, ``leave_s`` when the ranks left by themselves.
    ``excess_s`` is, for each of ``steps``, how much the slowest rank's own work exceeds the median rank's.
    """

    end_s: float
    restores: tuple[tuple[float, float], ...] = ()
    loop_s: float | None = None
    steps: Steps = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    ends_s: Floats = field(default_factory=lambda: np.empty(0))
    saves: tuple[Save, ...] = ()
    progress_s: float | None = None
    leave_s: float | None = None
    resumed: int = 0
    reached: int = 0
    has_hung: bool = False
    excess_s: Floats | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptTimes:
    """One allocation, from ``start_s`` to ``end_s``. ``is_first`` makes getting going start-up, else it is restart.

    ``is_running`` says that ``end_s`` is only now.
    """

    start_s: float
    end_s: float
    groups: Sequence[Group]
    is_first: bool
    is_running: bool = False


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of an attempt under one label."""

    start_s: float
    end_s: float
    label: Label


@dataclass(frozen=True, kw_only=True)
class Shares:
    """An attempt shared out: ``seconds`` by label sum to its length. Straggler excess has seconds, but no span.

    ``high_water`` counts the steps that were ever completed, up to and with this attempt; ``rework_steps`` those that
    this attempt computed again.
    """

    seconds: Mapping[Label, float]
    spans: tuple[Span, ...]
    high_water: int
    rework_steps: int


def partition(attempt: AttemptTimes, high_water: int = 0) -> Shares:
    """Label every second of ``attempt``, before which ``high_water`` steps had been completed at some time."""
    start_s, end_s = attempt.start_s, max(attempt.end_s, attempt.start_s)
    canvas = _Canvas(start_s, end_s, Label.UNKNOWN)
    begin_s, straggler, rework_steps = start_s, {Label.USEFUL: 0.0, Label.REWORK: 0.0}, 0
    for number, told in enumerate(attempt.groups):
        group = replace(told, end_s=min(max(told.end_s, start_s), end_s))
        is_last = number == len(attempt.groups) - 1
        idle = Label.START_UP if attempt.is_first and number == 0 else Label.RESTART
        canvas.paint(begin_s, group.end_s, idle)
        _paint_group(canvas, group, idle, high_water, is_running=attempt.is_running and is_last)
        redone = int(np.searchsorted(group.steps, high_water))
        rework_steps += redone
        if group.excess_s is not None:
            straggler[Label.REWORK] += math.fsum(group.excess_s[:redone])
            straggler[Label.USEFUL] += math.fsum(group.excess_s[redone:])
        high_water = max(high_water, group.reached, int(group.steps[-1]) + 1 if len(group.steps) else 0)
        begin_s = max(begin_s, group.end_s)
    if attempt.groups and not attempt.is_running:
        canvas.paint(begin_s, end_s, Label.IDLE_TAIL)
    spans = canvas.spans()
    seconds = dict.fromkeys(ALLOCATED, 0.0)
    for label in ALLOCATED:
        seconds[label] = math.fsum(span.end_s - span.start_s for span in spans if span.label is label)
    for label, excess_s in straggler.items():
        moved_s = min(excess_s, seconds[label])
        seconds[label] -= moved_s
        seconds[Label.STRAGGLER] += moved_s
    return Shares(seconds=seconds, spans=spans, high_water=high_water, rework_steps=rework_steps)


def total(parts: Iterable[Mapping[Label, float]]) -> dict[Label, float]:
    """The sum of several shares, label by label."""
    found = list(parts)
    return {label: math.fsum(part.get(label, 0.0) for part in found) for label in Label}


def _paint_group(canvas: _Canvas, group: Group, idle: Label, high_water: int, *, is_running: bool) -> None:
    for begin_s, end_s in group.restores:
        canvas.paint(begin_s, end_s, Label.RESTORE)
    if group.loop_s is not None:
        _paint_steps(canvas, group, idle, high_water)
    _paint_tail(canvas, group, high_water, is_running=is_running)
    for save in group.saves:
        label = Label.EMERGENCY if save.is_emergency else Label.CHECKPOINT
        canvas.paint(save.begin_s, group.end_s if save.end_s is None else save.end_s, label)


def _paint_steps(canvas: _Canvas, group: Group, idle: Label, high_water: int) -> None:
    loop_s, ends_s, steps = group.loop_s, group.ends_s, group.steps
    if loop_s is None or not len(steps):
        return
    redone = int(np.searchsorted(steps, high_water))
    last_s = float(ends_s[-1])
    turn_s = float(ends_s[redone - 1]) if redone else loop_s
    canvas.paint(loop_s, turn_s, Label.REWORK)
    canvas.paint(turn_s, last_s, Label.USEFUL)
    if len(steps) > 2:
        median_s = _median_step(group)
        first_s = float(ends_s[0]) - loop_s
        if first_s > SLOW_FIRST_STEP * median_s:
            canvas.paint(loop_s, loop_s + first_s - median_s, idle)


def _paint_tail(canvas: _Canvas, group: Group, high_water: int, *, is_running: bool) -> None:
    """From the last step, save or phase to the end of the group."""
    known_s = [save.end_s for save in group.saves if save.end_s is not None]
    last_s = max([*known_s, float(group.ends_s[-1]) if len(group.steps) else -math.inf])
    progress_s = max(last_s, -math.inf if group.progress_s is None else group.progress_s)
    if group.leave_s is not None:
        canvas.paint(last_s if last_s > -math.inf else group.leave_s, group.end_s, Label.IDLE_TAIL)
        return
    if group.loop_s is None:
        if group.has_hung and progress_s > -math.inf:
            canvas.paint(progress_s, group.end_s, Label.HANG)
        return
    from_s = max(last_s, group.loop_s)
    if is_running:
        count = int(group.steps[-1]) + 1 if len(group.steps) else 0
        until_s = min(group.end_s, from_s + _patience_s(group))
        canvas.paint(from_s, until_s, Label.REWORK if count < high_water else Label.USEFUL)
        canvas.paint(until_s, group.end_s, Label.UNKNOWN)
        return
    kept_s = _paint_lost_steps(canvas, group, from_s, max(progress_s, from_s), high_water)
    if group.has_hung:
        canvas.paint(max(progress_s, kept_s), group.end_s, Label.HANG)
        return
    # A step that was cut off will be computed again, like a finished one that no checkpoint holds.
    cut_off = group.end_s - kept_s <= _patience_s(group)
    canvas.paint(kept_s, group.end_s, Label.REWORK if cut_off else Label.HANG)


def _paint_lost_steps(canvas: _Canvas, group: Group, from_s: float, hung_s: float, high_water: int) -> float:
    """From ``from_s`` on, the steps that others vouch for and whose records are lost. Returns when they were over.

    ``hung_s`` is when they were over at the latest in a group that hung.
    """
    known = int(group.steps[-1]) + 1 if len(group.steps) else group.resumed
    lost = max(group.reached - known, 0)
    if not lost:
        return from_s
    if len(group.steps):
        step_s = _median_step(group)
    else:
        # Where no step's time is known they had it all, but for the half of one that an end other than a hang cut off.
        step_s = (hung_s - from_s) / lost if group.has_hung else (group.end_s - from_s) / (lost + 0.5)
    kept_s = min(from_s + lost * step_s, group.end_s)
    again = min(max(high_water - known, 0), lost)
    turn_s = from_s + (kept_s - from_s) * again / lost
    canvas.paint(from_s, turn_s, Label.REWORK)
    canvas.paint(turn_s, kept_s, Label.USEFUL)
    return kept_s


def _patience_s(group: Group) -> float:
    durations_s = _durations_s(group)
    return max(PATIENCE_S, 5 * float(durations_s.max(initial=0.0)))


def _median_step(group: Group) -> float:
    """The median duration of a step, over steps that follow each other."""
    if len(group.steps) < 2:
        return max(float(group.ends_s[0]) - (group.loop_s or 0.0), 0.0) if len(group.steps) else 0.0
    return float(np.median(_durations_s(group) / np.maximum(np.diff(group.steps), 1)))


def _durations_s(group: Group) -> Floats:
    """From the end of each step to that of the next one known, without the saves in between."""
    durations_s = np.diff(group.ends_s)
    for save in group.saves:
        after = int(np.searchsorted(group.ends_s, save.begin_s, side="right"))
        if save.end_s is not None and 0 < after <= len(durations_s):
            durations_s[after - 1] -= save.end_s - save.begin_s
    return np.maximum(durations_s, 0.0)


class _Canvas:
    """Labels over an interval; what is painted later covers what was there."""

    def __init__(self, start_s: float, end_s: float, label: Label) -> None:
        self._start_s, self._end_s = start_s, end_s
        self._layers: list[tuple[float, float, Label]] = [(start_s, end_s, label)]

    def paint(self, start_s: float, end_s: float, label: Label) -> None:
        start_s, end_s = max(start_s, self._start_s), min(end_s, self._end_s)
        if end_s > start_s:
            self._layers.append((start_s, end_s, label))

    def spans(self) -> tuple[Span, ...]:
        cuts = np.unique([edge for start_s, end_s, _ in self._layers for edge in (start_s, end_s)])
        owner = [0] * max(len(cuts) - 1, 0)
        for number, (start_s, end_s, _) in enumerate(self._layers):
            low, high = int(np.searchsorted(cuts, start_s)), int(np.searchsorted(cuts, end_s))
            owner[low:high] = [number] * (high - low)
        found: list[Span] = []
        for index, number in enumerate(owner):
            label = self._layers[number][2]
            if found and found[-1].label is label:
                found[-1] = Span(start_s=found[-1].start_s, end_s=float(cuts[index + 1]), label=label)
            else:
                found.append(Span(start_s=float(cuts[index]), end_s=float(cuts[index + 1]), label=label))
        return tuple(found)
