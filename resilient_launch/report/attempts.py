"""What each attempt of a run did, told from the run directory alone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resilient_launch.core.causes import Cause
from resilient_launch.core.events import read_events
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import Attempt, AttemptRecord, read_attempts, read_ends
from resilient_launch.report.resumes import Difference, GroupResume, differences, group_resumes

_LATEST_WINDOWS = 6


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """One attempt. Steps are counts of completed ones, None where there were none yet; ``cause`` is None while it runs.

    ``rework_steps`` are those it computed again; ``torchelastic_restart_count`` the worker-group restarts inside it.
    ``claimed_at`` is wall clock, ``step_s`` the duration of its latest steps, ``until_step`` the script's last one.
    ``group_resumes`` are those of worker groups inside it, ``differences`` where rework came out otherwise.
    """

    number: int
    job_id: str
    slurm_restart_count: int
    torchelastic_restart_count: int
    cause: Cause | None
    resume_step: int | None
    end_step: int | None
    rework_steps: int
    seconds: float
    nodes: tuple[str, ...]
    phase: str
    why: str
    claimed_at: float = 0.0
    step_s: float | None = None
    until_step: int | None = None
    group_resumes: tuple[GroupResume, ...] = ()
    differences: tuple[Difference, ...] = ()


def attempt_rows(paths: RunPaths) -> list[AttemptRow]:
    """Every attempt in order. Reads the first rank's events only."""
    ends = read_ends(paths)
    return [_row(paths, attempt, ends.get(attempt.number)) for attempt in read_attempts(paths)]


def _row(paths: RunPaths, attempt: Attempt, end: AttemptRecord | None) -> AttemptRow:
    events = list(rank_events(paths, attempt.number))
    resumes = [event for event in events if event["kind"] == "resume"]
    steps = [event["first"] + len(event["end_s"]) for event in events if event["kind"] == "window"]
    phases = [str(event["phase"]) for event in events if event["kind"] == "phase"]
    last = max([*steps, *(event["resume_step"] for event in resumes)], default=None)
    return AttemptRow(
        number=attempt.number,
        job_id=attempt.job_id,
        slurm_restart_count=attempt.slurm_restart_count,
        torchelastic_restart_count=max((int(event["torchelastic_restart_count"]) for event in resumes), default=0),
        cause=Cause(end.cause) if end else None,
        resume_step=int(resumes[0]["resume_step"]) if resumes else None,
        end_step=end.end_step if end and end.end_step is not None else last,
        rework_steps=sum(int(event["rework_steps"]) for event in resumes),
        seconds=max((end.ended_at if end else time.time()) - attempt.claimed_at, 0.0),
        nodes=attempt.nodes,
        phase=phases[-1] if phases else "init",
        why=end.why if end else "",
        claimed_at=attempt.claimed_at,
        step_s=_step_s([event for event in events if event["kind"] == "window"][-_LATEST_WINDOWS:]),
        group_resumes=group_resumes(events),
        differences=differences(events),
        until_step=next(
            (int(event["until"]) for event in reversed(events) if event["kind"] == "phase" and "until" in event), None
        ),
    )


def _step_s(windows: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds a step of the latest windows took, saves among them included."""
    ends = [float(window["mono0"]) + float(window["end_s"][-1]) for window in windows if window["end_s"]]
    count = sum(len(window["end_s"]) for window in windows[1:])
    return (ends[-1] - ends[0]) / count if count and ends[-1] > ends[0] else None


def rank_events(paths: RunPaths, attempt: int) -> Iterable[dict[str, Any]]:
    """The events of the first rank in one attempt, worker-group restarts in order."""
    files = paths.events.glob(f"a{attempt:04d}.r*.w00000.jsonl")
    return read_events(sorted(files, key=lambda file: int(file.name.split(".")[1][1:])))


def metrics(paths: RunPaths) -> dict[int, dict[str, float]]:
    """What the script logged, by step; a step that ran again has the values of its newest run."""
    values: dict[int, dict[str, float]] = {}
    for attempt in read_attempts(paths):
        for event in rank_events(paths, attempt.number):
            if event["kind"] == "metric":
                values[int(event["step"])] = event["values"]
    return values
