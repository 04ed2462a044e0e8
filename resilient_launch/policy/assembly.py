"""What the processes of one attempt told, put together: worker groups on one clock, that of the first node."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_launch.core.causes import Cause
from resilient_launch.policy.partition import Floats, Group, Save, Steps
from resilient_launch.policy.told import CheckpointMark, Curves, Told

MAX_BANDS = 60
MAX_RANKS_DRAWN = 64
_BLOCK = 65536


@dataclass(frozen=True, kw_only=True)
class StepBand:
    """How long a rank's steps took around one moment, in seconds, times wall-clock."""

    rank: int
    step: int
    low_s: float
    median_s: float
    high_s: float


@dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """One save of the gang: ``blocking_s`` of the slowest rank, ``num_bytes`` of the whole, ``at_s`` on the wall clock.

    ``drain_s`` is the time from its staging to its being durable, where it drained in the background.
    """

    attempt: int
    step: int
    reason: str
    status: str
    at_s: float
    blocking_s: float
    num_bytes: int | None
    drain_s: float | None


@dataclass
class AttemptTold:
    """All that the files of one attempt tell. Times of ``groups`` are wall-clock seconds by the first node's clock."""

    number: int
    groups: list[Group] = field(default_factory=list)
    begun_s: float | None = None
    ended_s: float | None = None
    last_s: float | None = None
    end_cause: str | None = None
    end_step: int | None = None
    resumes: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[SavedCheckpoint] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    rework: list[dict[str, Any]] = field(default_factory=list)
    notices: list[dict[str, Any]] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)
    bands: list[StepBand] = field(default_factory=list)
    curves: list[Curves] = field(default_factory=list)
    has_local_times: bool = False
    num_ranks: int = 0
    first_step: int | None = None
    last_step: int | None = None
    step_s: float | None = None


def assemble(
    number: int, agents: Sequence[Told], groups: Iterable[Iterable[Told]], *, in_full: bool = False
) -> AttemptTold:
    """Put together what the processes of attempt ``number`` told: its node agents, and its ranks by worker group.

    Ranks are taken one by one, so that ``groups`` may read them as they are asked for. ``in_full`` also keeps what a
    drawing needs.
    """
    told = AttemptTold(number=number)
    leader = next((agent for agent in agents if agent.node == 0 and agent.first_s is not None), None)
    # Other nodes' clocks are a poorer word on when things were over.
    _take_agents(told, agents if leader is None else [leader])
    for ranks in groups:
        _take_group(told, ranks, leader, in_full=in_full)
    _close_groups(told, agents, leader)
    if not told.groups and told.begun_s is not None and told.end_cause != Cause.FINISHED:
        # No rank ever spoke: the attempt did not get beyond starting them.
        told.groups.append(Group(end_s=math.inf if told.ended_s is None else told.ended_s))
    return told


def _take_agents(told: AttemptTold, agents: Sequence[Told]) -> None:
    for agent in agents:
        for record in agent.others:
            at_s = record["mono"] + agent.wall_s
            if record["kind"] == "end":
                told.ended_s, told.end_cause = at_s, str(record["cause"])
                step = record["step"]
                told.end_step = step if isinstance(step, int) else None
            elif record["kind"] == "decision":
                told.decisions.append({**record, "t": at_s})
            elif record["kind"] == "notice":
                told.notices.append({**record, "t": at_s})
        if agent.node == 0 and agent.first_s is not None:
            told.begun_s = agent.first_s + agent.wall_s
        if agent.last_s is not None:
            told.last_s = max(told.last_s or -math.inf, agent.last_s + agent.wall_s)


def _take_group(told: AttemptTold, ranks: Iterable[Told], leader: Told | None, *, in_full: bool) -> None:
    best: Told | None = None
    resumed = 0
    locals_: list[_LocalTimes] = []
    marks: list[tuple[float, CheckpointMark]] = []
    for rank in ranks:
        if rank.first_s is None:
            continue
        told.num_ranks = max(told.num_ranks, (rank.rank or 0) + 1)
        if rank.resume is not None:
            told.resumes.append(rank.resume)
            resumed = rank.resume["resume_step"]
        told.rework += [record for record in rank.others if record["kind"] == "rework"]
        if rank.curves.points:
            told.curves.append(rank.curves)
        marks += [(mark.at_s + rank.wall_s, mark) for mark in rank.checkpoints]
        if len(rank.timed_steps):
            locals_.append(_LocalTimes(rank.timed_steps, rank.local_s))
        if in_full and len(told.bands) < MAX_BANDS * MAX_RANKS_DRAWN:
            told.bands += _bands(rank)
        if best is None:
            best = rank
        elif rank.node == 0 and best.node != 0:
            # Ranks on the first node share the clock of the agent that tells when groups end.
            best = _merged(rank, best)
        else:
            best = _merged(best, rank)
    if best is None:
        return
    if leader is not None and best.node == leader.node:
        best.wall_s = leader.wall_s
    group = _group(best, _excess(best, locals_), resumed)
    told.has_local_times |= group.excess_s is not None
    told.groups.append(group)
    told.restarts.append(best.restart or 0)
    told.checkpoints += _saved(told.number, marks)
    if len(best.steps):
        told.first_step = int(best.steps[0]) if told.first_step is None else told.first_step
        told.last_step = max(told.last_step or 0, int(best.steps[-1]) + 1)
        if len(best.steps) > 1:
            told.step_s = float(np.median(np.diff(best.ends_s)))
    last_s = max(best.last_s or -math.inf, float(best.ends_s[-1]) if len(best.steps) else -math.inf)
    if leader is None or best.node == leader.node or told.last_s is None:
        told.last_s = max(told.last_s or -math.inf, last_s + best.wall_s)
    if told.begun_s is None:
        told.begun_s = (best.first_s or 0.0) + best.wall_s


def _merged(best: Told, other: Told) -> Told:
    """``best`` with the steps, phases and saves that only ``other`` tells of, moved to its clock.

    Ranks of a synchronous job end a step together, so steps that both know show how far their clocks are apart.
    """
    told = {(mark.step, mark.status) for mark in best.checkpoints}
    is_whole = 0 < len(best.steps) == len(other.steps) and told.issuperset(
        (m.step, m.status) for m in other.checkpoints
    )
    if is_whole:
        return best
    missing = ~np.isin(other.steps, best.steps, assume_unique=True)
    _, mine, theirs = np.intersect1d(best.steps, other.steps, assume_unique=True, return_indices=True)
    shift_s = other.wall_s - best.wall_s
    if len(mine):
        shift_s = float(np.median(best.ends_s[mine] - other.ends_s[theirs]))
    elif best.node == other.node:
        shift_s = 0.0
    elif best.loop_s is not None and other.loop_s is not None:
        # The loop is entered together as well.
        shift_s = best.loop_s - other.loop_s
    steps = np.concatenate([best.steps, other.steps[missing]])
    ends_s = np.concatenate([best.ends_s, other.ends_s[missing] + shift_s])
    order = np.argsort(steps, kind="stable")
    best.steps, best.ends_s = steps[order], np.maximum.accumulate(ends_s[order])
    best.checkpoints += [
        replace(mark, at_s=mark.at_s + shift_s) for mark in other.checkpoints if (mark.step, mark.status) not in told
    ]
    best.checkpoints.sort(key=lambda mark: (mark.at_s, mark.status == "begin"))
    if other.last_s is not None and best.last_s is not None and other.last_s + shift_s > best.last_s:
        best.phases += [(at_s + shift_s, phase) for at_s, phase in other.phases if at_s + shift_s > best.last_s]
        best.last_s = other.last_s + shift_s
    if best.loop_s is None and other.loop_s is not None:
        best.loop_s = other.loop_s + shift_s
    return best


class _LocalTimes:
    """What each step cost one rank by itself, four bytes a step where none is missing."""

    def __init__(self, steps: Steps, local_s: Floats) -> None:
        self._first = int(steps[0])
        self._steps = None if int(steps[-1]) - self._first + 1 == len(steps) else steps
        self._local_s = local_s.astype(np.float32)

    def of(self, steps: Steps) -> NDArray[np.float32]:
        """The times of ``steps``; NaN where one is not known."""
        where = steps - self._first if self._steps is None else np.searchsorted(self._steps, steps)
        is_known = (where >= 0) & (where < len(self._local_s))
        if self._steps is not None:
            is_known[is_known] = self._steps[where[is_known]] == steps[is_known]
        found = np.full(len(steps), np.nan, dtype=np.float32)
        found[is_known] = self._local_s[where[is_known]]
        return found


def _excess(best: Told, locals_: Sequence[_LocalTimes]) -> Floats | None:
    """How much the slowest rank's own work exceeds the median rank's, for each of the group's steps."""
    if len(locals_) < 2 or not len(best.steps):
        return None
    excess_s = np.zeros(len(best.steps))
    for begin in range(0, len(best.steps), _BLOCK):
        block = np.stack([times.of(best.steps[begin : begin + _BLOCK]) for times in locals_])
        is_known = (~np.isnan(block)).sum(axis=0) >= 2
        known = block[:, is_known]
        excess_s[begin : begin + _BLOCK][is_known] = np.nanmax(known, axis=0) - np.nanmedian(known, axis=0)
    return excess_s


def _group(best: Told, excess_s: Floats | None, resumed: int) -> Group:
    wall_s = best.wall_s
    restores = []
    for at_s in (at_s for at_s, phase in best.phases if phase == "restore"):
        after = next((later for later, phase in best.phases if later > at_s and phase != "restore"), None)
        restores.append((at_s + wall_s, math.inf if after is None else after + wall_s))
    leaves = [at_s for at_s, phase in best.phases if phase == "leave"]
    return Group(
        end_s=max([best.last_s or 0.0, *best.ends_s[-1:].tolist()]) + wall_s,
        restores=tuple(restores),
        loop_s=None if best.loop_s is None else best.loop_s + wall_s,
        resumed=resumed,
        steps=best.steps,
        ends_s=best.ends_s + wall_s,
        saves=_saves(best),
        progress_s=max(at_s for at_s, _ in best.phases) + wall_s if best.phases else None,
        leave_s=leaves[-1] + wall_s if leaves else None,
        excess_s=excess_s,
    )


def _saves(best: Told) -> tuple[Save, ...]:
    """The blocking part of every save: from its begin to its staging, its end or its failure.

    Where training waits for more than the staging, as it does before it leaves, its phase says until when.
    """
    saves: list[Save] = []
    opened: CheckpointMark | None = None
    for mark in best.checkpoints:
        if mark.status == "begin":
            if opened is not None:
                saves.append(_save(opened, opened.at_s, best))
            opened = mark
        elif opened is not None:
            saves.append(_save(opened, mark.at_s, best))
            opened = None
        elif mark.status in ("durable", "staged") and mark.blocking_s is not None and mark.drain_s is None:
            # The line that it began with is lost.
            saves.append(_save(mark, mark.at_s, best, mark.at_s - mark.blocking_s))
    if opened is not None:
        saves.append(_save(opened, None, best))
    for begin_s, end_s in _spans(best, "save"):
        inside = [index for index, save in enumerate(saves) if begin_s <= save.begin_s <= end_s]
        for index in inside[-1:]:
            last = saves[index]
            saves[index] = last if last.end_s is None else replace(last, end_s=max(last.end_s, end_s))
        if not inside:
            # Before it left, training waited for a save that was under way in the background.
            leaves = any(0.0 <= at_s + best.wall_s - end_s < 1.0 for at_s, phase in best.phases if phase == "leave")
            saves.append(Save(step=0, begin_s=begin_s, end_s=end_s, is_emergency=leaves))
    return tuple(saves)


def _spans(best: Told, name: str) -> list[tuple[float, float]]:
    """From each entry into a phase to that of the next one, wall clock; one that nothing follows is left out."""
    return [
        (at_s + best.wall_s, until_s + best.wall_s)
        for (at_s, phase), (until_s, _) in pairwise(best.phases)
        if phase == name and until_s > at_s
    ]


def _save(mark: CheckpointMark, end_s: float | None, best: Told, begin_s: float | None = None) -> Save:
    return Save(
        step=mark.step,
        begin_s=(mark.at_s if begin_s is None else begin_s) + best.wall_s,
        end_s=None if end_s is None else end_s + best.wall_s,
        is_emergency=mark.reason == "notice",
    )


def _saved(attempt: int, marks: Sequence[tuple[float, CheckpointMark]]) -> list[SavedCheckpoint]:
    """One line a save, from what every rank says of it; ``marks`` with the wall-clock times of their nodes."""
    by_save: dict[tuple[int, str], list[tuple[float, CheckpointMark]]] = {}
    for at_s, mark in marks:
        by_save.setdefault((mark.step, mark.reason), []).append((at_s, mark))
    found: list[SavedCheckpoint] = []
    for (step, reason), lines in sorted(by_save.items()):
        ends = [mark for _, mark in lines if mark.status != "begin"]
        said = {mark.status for mark in ends}
        found.append(
            SavedCheckpoint(
                attempt=attempt,
                step=step,
                reason=reason,
                status=next((word for word in ("durable", "failed", "staged") if word in said), "begin"),
                at_s=min(at_s for at_s, _ in lines),
                blocking_s=max((mark.blocking_s for mark in ends if mark.blocking_s is not None), default=0.0),
                num_bytes=max((mark.num_bytes for mark in ends if mark.num_bytes is not None), default=None),
                drain_s=max((mark.drain_s for mark in ends if mark.drain_s is not None), default=None),
            )
        )
    return found


def _bands(rank: Told) -> list[StepBand]:
    if len(rank.steps) < 3 or rank.rank is None:
        return []
    durations_s = np.diff(rank.ends_s) / np.diff(rank.steps)
    found = []
    for part in np.array_split(np.arange(len(durations_s)), min(MAX_BANDS, max(len(durations_s) // 5, 1))):
        low_s, median_s, high_s = np.quantile(durations_s[part], (0.1, 0.5, 0.9))
        step = int(rank.steps[part[len(part) // 2] + 1])
        found.append(
            StepBand(rank=rank.rank, step=step, low_s=float(low_s), median_s=float(median_s), high_s=float(high_s))
        )
    return found


def _latest(*moments_s: float | None) -> float | None:
    return max((each for each in moments_s if each is not None and each > -math.inf), default=None)


def _close_groups(told: AttemptTold, agents: Sequence[Told], leader: Told | None) -> None:
    """Say when each group was over, how far it got by the agents' word, and whether it hung."""
    ends: dict[int, float] = {}
    reached: dict[int, int] = {}
    hung: dict[int, float] = {}
    for agent in sorted(agents, key=lambda each: each is leader):
        for record in agent.others:
            restart, step = record.get("restart"), record.get("step")
            if record["kind"] == "hang" and record.get("status") == "confirmed" and isinstance(restart, int):
                # When it stood still, where the watchdog says so.
                idle_s = record.get("idle_s")
                is_known = isinstance(idle_s, int | float)
                hung[restart] = record["mono"] + agent.wall_s - idle_s if is_known else -math.inf
            if record["kind"] == "group_end" and isinstance(restart, int):
                ends[restart] = record["mono"] + agent.wall_s
                reached[restart] = max(reached.get(restart, 0), step if isinstance(step, int) else 0)
    for index, (restart, group) in enumerate(zip(told.restarts, told.groups, strict=True)):
        is_last = index == len(told.groups) - 1
        counts = [reached.get(restart, 0)]
        if is_last:
            counts.append(told.end_step or 0)
        elif len(told.resumes) > index + 1:
            counts.append(int(told.resumes[index + 1]["resume_step"]))
        end_s = ends.get(restart)
        if end_s is None and is_last and group.leave_s is None:
            # Nobody is left to tell: the silence lasts as long as the attempt does.
            end_s = math.inf if told.ended_s is None else told.ended_s
        told.groups[index] = replace(
            group,
            end_s=group.end_s if end_s is None else max(end_s, group.end_s),
            reached=max(counts),
            progress_s=_latest(group.progress_s, hung.get(restart)),
            has_hung=restart in hung or (is_last and told.end_cause == Cause.HANG),
        )
