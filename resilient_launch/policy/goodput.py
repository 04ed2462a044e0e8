"""Where the GPU-seconds of a run went: every one of an allocation's gets exactly one label.

Told from the events of ``core.events`` and from what the scheduler gave. Within one attempt durations come from the
monotonic clocks; the allocation's bounds come from the scheduler's clock and are never left, so that the labels of an
allocation add up to it whatever the clocks and the files say.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from resilient_launch.core.causes import Cause

Event = Mapping[str, Any]
_ORDER = {"init": 0, "restore": 1, "first_step": 2, "begin": 4, "staged": 5, "durable": 6, "failed": 6, "leave": 7}
_USUAL = 3


class Label(StrEnum):
    """What a GPU-second was spent on."""

    START_UP = "start-up"
    """From the nodes' allocation to the restore, in the run's first attempt."""
    RESTART = "restart"
    """The same in every later attempt and worker group, with the wait for a failed group to be taken down."""
    RESTORE = "restore"
    USEFUL = "useful step"
    REWORK = "rework"
    """A step that had been completed before."""
    CHECKPOINT = "checkpoint blocking"
    EMERGENCY = "emergency save"
    HANG = "hang"
    """From the last progress to the abort, where the attempt's cause is a hang."""
    STRAGGLER = "straggler excess"
    """Slowest rank's local compute of a step beyond the median's, where windows carry ``local_s``."""
    IDLE_TAIL = "idle tail"
    """After the last rank left."""
    UNKNOWN = "unknown"
    """What no event tells: above all, from the last sign of life of ranks that were killed."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What the scheduler gave one attempt: ``num_gpus`` from ``start_s`` to ``end_s``, wall clock.

    ``queued_s`` is when the wait for it began, None where that is not known.
    """

    attempt: int
    start_s: float
    end_s: float
    num_gpus: int
    queued_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Partition:
    """GPU-seconds by label, and the seconds in the queue, which are nobody's GPU time."""

    gpu_s: Mapping[Label, float]
    queue_wait_s: float

    @property
    def allocated_gpu_s(self) -> float:
        return math.fsum(self.gpu_s.values())

    @property
    def goodput(self) -> float:
        """Useful GPU-seconds over allocated ones; 0 where nothing was allocated."""
        allocated = self.allocated_gpu_s
        return self.gpu_s[Label.USEFUL] / allocated if allocated > 0 else 0.0


def account(events: Iterable[Event], allocations: Sequence[Allocation]) -> Partition:
    """Label every GPU-second of ``allocations``. Duplicate events change nothing, missing ones leave ``unknown``.

    Events of attempts without an allocation count only for which steps had been done before.
    """
    by_attempt: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        by_attempt[int(event.get("attempt", 0))].append(event)
    given = {allocation.attempt: allocation for allocation in allocations}
    parts: dict[Label, list[float]] = defaultdict(list)
    reached = 0
    first = min([*given, *by_attempt], default=0)
    for number in sorted(given.keys() | by_attempt.keys()):
        story = _Attempt(by_attempt[number], reached, is_first=number == first)
        if number in given:
            for label, seconds in story.label(given[number]):
                parts[label].append(seconds)
        reached = story.reached
    waits = [max(each.start_s - each.queued_s, 0.0) for each in allocations if each.queued_s is not None]
    return Partition(gpu_s={label: math.fsum(parts[label]) for label in Label}, queue_wait_s=math.fsum(waits))


class _Attempt:
    """One attempt's events, told rank by rank."""

    def __init__(self, events: Sequence[Event], reached: int, *, is_first: bool) -> None:
        self._is_first = is_first
        self._offsets = _clock_offsets(events)
        self._ranks: dict[int, list[Event]] = defaultdict(list)
        self._agents = [event for event in events if "rank" not in event]
        for event in events:
            if "rank" in event:
                self._ranks[int(event["rank"])].append(event)
        worlds = [int(event["world_size"]) for event in events if event["kind"] == "resume"]
        self._num_ranks = max([len(self._ranks), *worlds])
        # What had been completed before each worker group began to step.
        self._before: dict[int, int] = {}
        for restart in sorted({int(event.get("restart", 0)) for event in events}):
            group = [event for event in events if int(event.get("restart", 0)) == restart]
            known = [int(event["resume_step"] + event["rework_steps"]) for event in group if event["kind"] == "resume"]
            reached = self._before[restart] = max([reached, *known])
            reached = max([reached, *(_steps_end(event) for event in group if event["kind"] == "window")])
        self.reached = reached
        self._excess = _straggler_excess(event for each in self._ranks.values() for event in each)

    def label(self, allocation: Allocation) -> Iterable[tuple[Label, float]]:
        """The allocation's GPU-seconds, in pieces. Ranks that left no events are unknown."""
        length_s = max(allocation.end_s - allocation.start_s, 0.0)
        if not self._ranks:
            label = (Label.START_UP if self._is_first else Label.RESTART) if self._agents else Label.UNKNOWN
            yield label, length_s * allocation.num_gpus
            return
        share = allocation.num_gpus / self._num_ranks
        shift_s = self._shift(allocation)
        for events in self._ranks.values():
            now_s = 0.0
            cuts, tail = self._cuts(events)
            ends = [(time_s + shift_s, label) for time_s, label in cuts]
            for time_s, label in [*sorted(ends, key=lambda cut: cut[0]), (allocation.end_s, tail)]:
                until_s = min(max(time_s - allocation.start_s, now_s), length_s)
                yield label, (until_s - now_s) * share
                now_s = until_s
        yield Label.UNKNOWN, length_s * share * (self._num_ranks - len(self._ranks))

    def _wall(self, event: Event, mono: float | None = None) -> float:
        return float(event["mono"] if mono is None else mono) + self._offsets[event.get("node", 0)]

    def _shift(self, allocation: Allocation) -> float:
        """What to add to the nodes' wall clocks to put their events inside the allocation."""
        times = [self._wall(event) for events in self._ranks.values() for event in events]
        if min(times) < allocation.start_s:
            return allocation.start_s - min(times)
        return min(allocation.end_s - max(times), 0.0)

    def _cuts(self, events: Sequence[Event]) -> tuple[list[tuple[float, Label]], Label]:
        """One rank's times, each with the label of what lies between the cut before and this one; the tail's label."""
        cuts: list[tuple[float, Label]] = []
        ordered = sorted(events, key=_moment)
        starting = Label.START_UP if self._is_first else Label.RESTART
        has_left, phase = False, "init"
        in_background: set[tuple[int, int]] = set()
        for event in ordered:
            restart = int(event.get("restart", 0))
            if restart > min(self._before):
                starting = Label.RESTART
            match event["kind"]:
                case "phase":
                    phase = str(event["phase"])
                    has_left = phase == "leave"
                    entered = {"init": starting, "restore": starting, "first_step": Label.RESTORE}
                    if phase in entered:
                        cuts.append((self._wall(event), entered[phase]))
                case "window":
                    cuts += self._step_cuts(event, self._before[restart])
                case "checkpoint":
                    if event["status"] == "begin":
                        cuts.append((self._wall(event), self._of_step(int(event["step"]) + 1, restart)))
                    elif (step := (restart, int(event["step"]))) not in in_background:
                        is_emergency = event["reason"] == "notice"
                        cuts.append((self._wall(event), Label.EMERGENCY if is_emergency else Label.CHECKPOINT))
                        if event["status"] == "staged":
                            in_background.add(step)
        if phase in ("init", "restore"):
            return cuts, starting if phase == "init" else Label.RESTORE
        last = ordered[-1]
        if last["kind"] == "checkpoint" and last["status"] == "begin":
            return cuts, Label.EMERGENCY if last["reason"] == "notice" else Label.CHECKPOINT
        end = next((event for event in self._agents if event["kind"] == "end"), None)
        if end is not None and end["cause"] == Cause.HANG:
            cuts.append((self._wall(end), Label.HANG))
        return cuts, Label.IDLE_TAIL if has_left or end is not None else Label.UNKNOWN

    def _of_step(self, number: int, restart: int) -> Label:
        return Label.REWORK if number <= self._before[restart] else Label.USEFUL

    def _step_cuts(self, window: Event, before: int) -> Iterable[tuple[float, Label]]:
        restart, first = int(window.get("restart", 0)), int(window["first"])
        for number, end_s in enumerate(window["end_s"], first + 1):
            end = self._wall(window, float(window["mono0"]) + float(end_s))
            label = Label.REWORK if number <= before else Label.USEFUL
            excess_s = self._excess.get((restart, number), 0.0)
            if excess_s > 0:
                yield end - excess_s, label
                label = Label.STRAGGLER
            yield end, label


def _moment(event: Event) -> tuple[float, int]:
    """When it was, and its place among what the same moment may bring: a file may hold a line twice, later on."""
    word = event["phase"] if event["kind"] == "phase" else event.get("status", "")
    return float(event["mono"]), _ORDER.get(word, _USUAL)


def _steps_end(window: Event) -> int:
    return int(window["first"]) + len(window["end_s"])


def _clock_offsets(events: Sequence[Event]) -> dict[Any, float]:
    """Wall clock minus monotonic clock of each node: the median, so that a clock set meanwhile moves nothing."""
    differences: dict[Any, list[float]] = defaultdict(list)
    for event in events:
        differences[event.get("node", 0)].append(float(event["t"]) - float(event["mono"]))
    return {node: median(values) for node, values in differences.items()}


def _straggler_excess(events: Iterable[Event]) -> dict[tuple[int, int], float]:
    """Seconds by which the slowest rank exceeded the median rank in each step, by worker group and step."""
    local: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for event in events:
        if event["kind"] == "window" and "local_s" in event:
            for number, seconds in enumerate(event["local_s"], int(event["first"]) + 1):
                local[int(event.get("restart", 0)), number][int(event["rank"])] = float(seconds)
    return {step: max(ranks.values()) - median(ranks.values()) for step, ranks in local.items()}
