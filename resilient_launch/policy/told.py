"""What one process told, from its events into arrays in one pass.

What damage leaves is kept: records that are not ours are counted and passed over, steps told twice count once.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from resilient_launch.core.events import KINDS, SCHEMA
from resilient_launch.policy.partition import Floats, Steps

MAX_CURVE_POINTS = 4096


@dataclass(frozen=True, kw_only=True)
class CheckpointMark:
    """One line about a checkpoint; ``at_s`` is on its node's monotonic clock."""

    at_s: float
    step: int
    status: str
    reason: str
    blocking_s: float | None
    num_bytes: int | None
    drain_s: float | None


@dataclass
class Told:
    """What one process tells. Times are on its node's monotonic clock; add ``wall_s`` for wall-clock seconds.

    ``restart`` and ``rank`` are None for a node agent. ``local_s`` is what each of ``timed_steps`` cost this rank by
    itself, where it says so.
    """

    restart: int | None
    rank: int | None
    node: int = 0
    wall_s: float = 0.0
    first_s: float | None = None
    last_s: float | None = None
    steps: Steps = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    ends_s: Floats = field(default_factory=lambda: np.empty(0))
    timed_steps: Steps = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    local_s: Floats = field(default_factory=lambda: np.empty(0))
    loop_s: float | None = None
    phases: list[tuple[float, str]] = field(default_factory=list)
    checkpoints: list[CheckpointMark] = field(default_factory=list)
    resume: dict[str, Any] | None = None
    others: list[dict[str, Any]] = field(default_factory=list)
    curves: Curves = field(default_factory=lambda: Curves())


@dataclass
class Damage:
    """What could not be read, over all files of a run."""

    num_files: int = 0
    num_events: int = 0
    num_damaged_lines: int = 0
    num_repeated_steps: int = 0
    newer_schema: int = 0
    unknown_kinds: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)


class Curves:
    """Values logged by step, thinned to every 2nd, 4th, … step once there are too many to draw."""

    def __init__(self) -> None:
        self.points: dict[str, dict[int, float]] = {}
        self._every = 1

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        if step % self._every:
            return
        for name, value in values.items():
            if isinstance(value, int | float):
                self.points.setdefault(str(name)[:80], {})[step] = float(value)
        if max(map(len, self.points.values()), default=0) > MAX_CURVE_POINTS:
            self._every *= 2
            for curve in self.points.values():
                for step in [step for step in curve if step % self._every]:
                    del curve[step]


class Listener:
    """Takes one process's records in any order, and says in the end what they told."""

    def __init__(self, restart: int | None, rank: int | None, node: int | None, damage: Damage) -> None:
        self._told = Told(restart=restart, rank=rank, node=node or 0)
        self._damage = damage
        self._windows = _Windows()

    def take(self, record: Mapping[str, Any]) -> None:
        """Take one record; what is wrong with it is counted, not raised."""
        told, damage, kind = self._told, self._damage, record["kind"]
        damage.num_events += 1
        if kind not in KINDS:
            damage.unknown_kinds[kind[:40]] += 1
            return
        damage.newer_schema += record.get("v", SCHEMA) != SCHEMA
        try:
            at_s, wall_s = float(record["mono"]), float(record["t"])
            if kind == "window":
                self._windows.add(record)
            elif kind == "metric":
                told.curves.add(int(record["step"]), record["values"])
            elif kind == "phase":
                told.phases.append((at_s, str(record["phase"])))
                if record["phase"] == "first_step" and told.loop_s is None:
                    told.loop_s = at_s
            elif kind == "checkpoint":
                told.checkpoints.append(_checkpoint(record, at_s))
            else:
                if kind == "resume":
                    told.resume = {**record, "resume_step": int(record["resume_step"])}
                    # It is written at once, the phase after it maybe never.
                    told.phases.append((at_s, "resumed"))
                told.others.append({**record, "mono": at_s})
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            damage.num_damaged_lines += 1
            return
        if told.first_s is None or at_s < told.first_s:
            # A wall clock may be set later on; the attempt was claimed, and its nodes given, by the one of the start.
            told.first_s, told.wall_s = at_s, wall_s - at_s
        told.node = record["node"] if isinstance(record.get("node"), int) else told.node
        told.last_s = at_s if told.last_s is None else max(told.last_s, at_s)

    def told(self) -> Told:
        """All that was told, in order."""
        told = self._told
        told.steps, told.ends_s = self._windows.steps(self._damage)
        told.timed_steps, told.local_s = self._windows.local_times()
        if told.loop_s is None:
            told.loop_s = self._windows.mono0_s
        # By time alone: of two lines of one microsecond, the one written first comes first.
        told.phases = sorted(dict.fromkeys(told.phases), key=lambda phase: phase[0])
        told.checkpoints = sorted(dict.fromkeys(told.checkpoints), key=lambda mark: (mark.at_s, mark.status == "begin"))
        return told


def _checkpoint(record: Mapping[str, Any], at_s: float) -> CheckpointMark:
    blocking_s, num_bytes, drain_s = (record.get(name) for name in ("blocking_s", "num_bytes", "drain_s"))
    return CheckpointMark(
        at_s=at_s,
        step=int(record["step"]),
        status=str(record["status"]),
        reason=str(record["reason"]),
        blocking_s=None if blocking_s is None else float(blocking_s),
        num_bytes=None if num_bytes is None else int(num_bytes),
        drain_s=None if drain_s is None else float(drain_s),
    )


class _Windows:
    """The steps of a file as they come, in flat arrays: eight bytes a step and a few a window."""

    def __init__(self) -> None:
        self._steps, self._locals = _Series(), _Series()
        self.mono0_s: float | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        ends = array("d", record["end_s"])
        mono0 = float(record["mono0"])
        first = int(record["first"])
        if not ends:
            return
        self._steps.add(first, np.frombuffer(ends) + mono0)
        self.mono0_s = mono0 if self.mono0_s is None else min(self.mono0_s, mono0)
        local = record.get("local_s")
        if isinstance(local, list):
            self._locals.add(int(record.get("local_first", first)), np.frombuffer(array("d", local)))

    def steps(self, damage: Damage) -> tuple[Steps, Floats]:
        """Steps in order, each once (as told first), and when each ended."""
        steps, ends_s, repeated = self._steps.sorted()
        damage.num_repeated_steps += repeated
        return steps, ends_s

    def local_times(self) -> tuple[Steps, Floats]:
        """The steps that were timed, in order, and what each cost this rank by itself."""
        steps, spent_s, _ = self._locals.sorted()
        is_timed = spent_s > 0.0
        return (steps, spent_s) if is_timed.all() else (steps[is_timed], spent_s[is_timed])


class _Series:
    """Values of runs of steps."""

    def __init__(self) -> None:
        self._firsts, self._counts, self._values = array("q"), array("q"), array("d")

    def add(self, first: int, values: Floats) -> None:
        self._firsts.append(first)
        self._counts.append(len(values))
        self._values.frombytes(values.tobytes())

    def sorted(self) -> tuple[Steps, Floats, int]:
        """Steps in order, each once with the value told first, and how many were told again."""
        values = np.frombuffer(self._values)
        if not len(values):
            return np.empty(0, dtype=np.int64), np.empty(0), 0
        firsts, counts = np.frombuffer(self._firsts, dtype=np.int64), np.frombuffer(self._counts, dtype=np.int64)
        starts = np.cumsum(counts) - counts
        steps = np.arange(len(values), dtype=np.int64) + np.repeat(firsts - starts, counts)
        if len(steps) < 2 or (np.diff(steps) > 0).all():
            return steps, values, 0
        steps, where = np.unique(steps, return_index=True)
        return steps, values[where], len(values) - len(steps)
