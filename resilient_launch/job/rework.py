"""Whether steps that are computed again come out as they did before: the proof of a resume, while it goes on."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path

from resilient_launch.core.events import EventWriter
from resilient_launch.core.paths import RunPaths

_MOST_ATTEMPTS = 8
"""What was computed again lies in the newest attempts; a long history is not read at every restart."""
_MOST_STEPS = 100_000
_COMPARED = re.compile(r"(?i)(?:^|[^a-z])(?:loss|lr|learning_rate)(?:$|[^a-z])")
_GROUP = re.compile(r"a(\d+)\.r(\d+)\.w00000\.jsonl")
log = logging.getLogger("rlaunch")


def is_compared(name: str) -> bool:
    """Whether a logged value must come out the same: a loss or a learning rate, and no time or throughput."""
    return _COMPARED.search(name) is not None


def read_logged(
    paths: RunPaths, *, until: tuple[int, int], since_step: int, first_attempt: int = 0
) -> dict[int, dict[str, float]]:
    """Losses and learning rates by step, from ``since_step`` on, as worker groups before ``until`` logged them last.

    ``until`` is (attempt, worker-group restart); attempts before ``first_attempt`` are another lineage's.
    """
    groups = sorted((group, path) for path in paths.events.glob("a*.w00000.jsonl") if (group := _group(path)) < until)
    attempts = sorted({group[0] for group, _ in groups if group[0] >= first_attempt})[-_MOST_ATTEMPTS:]
    logged: dict[int, dict[str, float]] = {}
    for group, path in groups:
        if group[0] in attempts:
            _read(path, since_step, logged)
    return logged


class ReworkCheck:
    """Compares what is logged now with ``before``; tells of the first difference, or at the end that there was none."""

    def __init__(self, before: Mapping[int, Mapping[str, float]], events: EventWriter) -> None:
        self._before, self._events = before, events
        self._last = max(before, default=-1)
        self._num_compared = 0
        self._is_over = not before

    def compare(self, step: int, values: Mapping[str, float]) -> None:
        """Look at the values of one step. Free once the rework is done or a difference was told."""
        if self._is_over:
            return
        if step > self._last:
            self._is_over = True
            if self._num_compared:
                self._events.emit("rework", flush=True, status="same", step=step, num_compared=self._num_compared)
            return
        before = self._before.get(step, {})
        for name in sorted(before.keys() & values.keys()):
            if not is_compared(name):
                continue
            self._num_compared += 1
            if before[name] != values[name] and not (math.isnan(before[name]) and math.isnan(values[name])):
                self._tell(step, name, before[name], values[name])
                return

    def _tell(self, step: int, name: str, before: float, now: float) -> None:
        self._is_over = True
        log.warning(
            "step %d came out otherwise than before the resume: %s was %r and is %r; the run is no longer the one "
            "that would have come out without the interruption",
            step,
            name,
            before,
            now,
        )
        self._events.emit(
            "rework",
            flush=True,
            status="differs",
            step=step,
            num_compared=self._num_compared,
            name=name,
            before=before,
            now=now,
        )


def _group(path: Path) -> tuple[int, int]:
    match = _GROUP.fullmatch(path.name)
    return (int(match[1]), int(match[2])) if match else (1 << 30, 0)


def _read(path: Path, since_step: int, logged: dict[int, dict[str, float]]) -> None:
    try:
        with path.open("rb") as lines:
            for line in lines:
                # Most lines are others; decoding them all would take a long run's restart seconds.
                if b'"kind":"metric"' not in line or not line.endswith(b"\n"):
                    continue
                _add(line, since_step, logged)
    except FileNotFoundError:
        return


def _add(line: bytes, since_step: int, logged: dict[int, dict[str, float]]) -> None:
    try:
        event = json.loads(line)
        step, values = int(event["step"]), event["values"]
        if step >= since_step and len(logged) < _MOST_STEPS:
            logged.setdefault(step, {}).update(
                {name: float(value) for name, value in values.items() if is_compared(name)}
            )
    except (ValueError, KeyError, TypeError, AttributeError):
        return
