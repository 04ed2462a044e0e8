"""What a run's files tell of its interruptions: how long attempts ran, how they ended, what a notice achieved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from resilient_launch.core.causes import Cause
from resilient_launch.core.events import read_events
from resilient_launch.core.ids import CheckpointId
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import Attempt, read_attempts, read_ends
from resilient_launch.policy.auto_interval import Stretch

DECISION = "checkpoint interval"
"""``what`` of the decision events that carry an interval."""


@dataclass(frozen=True, kw_only=True)
class History:
    """Earlier attempts, and what the newest decision among them rested on; None where none was made."""

    stretches: tuple[Stretch, ...]
    interval_s: float | None
    costs_s: tuple[float, ...]
    restart_s: float | None
    drains_s: tuple[float, ...] = ()
    slowdown: float = 0.0


def read_history(paths: RunPaths, *, before: int) -> History:
    """What the attempts numbered below ``before`` left. Reads claims, ends and first nodes' events: no step windows."""
    attempts = [attempt for attempt in read_attempts(paths) if attempt.number < before]
    stretches = [stretch for attempt in attempts for stretch in _stretches(paths, attempt)]
    for attempt in reversed(attempts):
        decisions = [
            event
            for event in _agent_events(paths, attempt.number)
            if event["kind"] == "decision" and event["what"] == DECISION
        ]
        if decisions:
            inputs = decisions[-1]["inputs"]
            return History(
                stretches=tuple(stretches),
                interval_s=float(decisions[-1]["interval_s"]),
                costs_s=tuple(float(cost) for cost in inputs["costs_s"]),
                restart_s=inputs["restart_s"],
                # Not told by versions that wrote nothing in the background.
                drains_s=tuple(float(drain) for drain in inputs.get("drains_s", ())),
                slowdown=float(inputs.get("slowdown", 0.0)),
            )
    return History(stretches=tuple(stretches), interval_s=None, costs_s=(), restart_s=None)


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What the first rank of every attempt saw: how long checkpoints blocked it and how long it took to start again.

    ``emergency_s`` are the saves that a notice brought; ``restarts_s`` run from an attempt's claim to its first step.
    """

    costs_s: tuple[float, ...]
    emergency_s: tuple[float, ...]
    restarts_s: tuple[float, ...]


def read_samples(paths: RunPaths) -> Samples:
    """Read every checkpoint and every start of the run. Takes as long as the events are many."""
    costs_s: list[float] = []
    emergency_s: list[float] = []
    restarts_s: list[float] = []
    for attempt in read_attempts(paths):
        has_started = False
        for event in read_events(paths.events.glob(f"a{attempt.number:04d}.r*.w00000.jsonl")):
            if event["kind"] == "checkpoint" and event["status"] == "durable" and "blocking_s" in event:
                (emergency_s if event["reason"] == "notice" else costs_s).append(float(event["blocking_s"]))
            elif event["kind"] == "phase" and event["phase"] == "first_step" and not has_started:
                has_started = True
                restarts_s.append(max(float(event["t"]) - attempt.claimed_at, 0.0))
    return Samples(costs_s=tuple(costs_s), emergency_s=tuple(emergency_s), restarts_s=tuple(restarts_s))


def _stretches(paths: RunPaths, attempt: Attempt) -> Iterator[Stretch]:
    """The attempt, cut at each worker-group restart: every one of them took work with it."""
    end = read_ends(paths).get(attempt.number)
    last_s = last_sign_of_life(paths, attempt)
    # A silent end is written down when the next attempt begins; the time in the queue before that is no exposure.
    ended_s = min(end.ended_at, last_s) if end and last_s else end.ended_at if end else last_s or attempt.claimed_at
    length_s = max(ended_s - attempt.claimed_at, 0.0)
    group_ends = {
        int(event["restart"]): float(event["t"]) - attempt.claimed_at
        for event in _agent_events(paths, attempt.number)
        if event["kind"] == "group_end"
    }
    began_s = 0.0
    for restart in sorted(group_ends)[:-1]:
        until_s = min(max(group_ends[restart], began_s), length_s)
        yield Stretch(length_s=until_s - began_s, cause=Cause.CRASH, start_age_s=began_s)
        began_s = until_s
    yield Stretch(
        length_s=length_s - began_s,
        cause=Cause(end.cause) if end else None,
        was_saved=end is not None and _saved_all(paths, attempt, end.end_step),
        start_age_s=began_s,
    )


def _saved_all(paths: RunPaths, attempt: Attempt, end_step: int | None) -> bool:
    """Whether the attempt's last step is in a checkpoint that the attempt after it could use."""
    following = next((each for each in read_attempts(paths) if each.number == attempt.number + 1), None)
    if following is None or end_step is None:
        return False
    found = (CheckpointId.parse(name) for name in following.checkpoints)
    return any(each.attempt == attempt.number and each.step >= end_step for each in found if each is not None)


def last_sign_of_life(paths: RunPaths, attempt: Attempt) -> float | None:
    """When a process of the attempt wrote an event last (wall clock); None where none did."""
    times = [path.stat().st_mtime for path in paths.events.glob(f"a{attempt.number:04d}.*.jsonl")]
    return max(times, default=None)


def _agent_events(paths: RunPaths, number: int) -> Iterator[dict[str, Any]]:
    return read_events(paths.events.glob(f"a{number:04d}.n0000.jsonl"))
