"""Run directories made by hand, and a scheduler that answers what a test says."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilient_launch.cluster.base import JobRow, JobView, RequeueOutcome
from resilient_launch.core.errors import UnreachableError
from resilient_launch.core.events import EventWriter
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import AttemptRecord, claim, record_end


@dataclass
class SaidScheduler:
    """Knows one job, as it was told; None is out of reach or unknown."""

    view: JobView | None = None
    is_reachable: bool = True
    asked: list[str] = field(default_factory=list)

    def show(self, job_id: str) -> JobView | None:
        self.asked.append(job_id)
        if not self.is_reachable:
            raise UnreachableError("Slurm does not answer")
        return self.view

    def queue(self, job_ids: Sequence[str]) -> dict[str, JobView]:
        return {job_id: self.view for job_id in job_ids if self.view is not None}

    def history(self, job_id: str) -> list[JobRow]:
        return []

    def requeue(self, job_id: str) -> RequeueOutcome:
        return RequeueOutcome.REQUEUED

    def cancel(self, job_id: str) -> None: ...

    def start_now(self, job_id: str) -> None: ...

    def node_address(self, node: str) -> str:
        return node

    def version(self) -> str:
        return "22.05.8"


def view(state: str, *, restarts: int = 0, reason: str = "") -> JobView:
    return JobView(job_id="7", state=state, reason=reason, restart_count=restarts)


class RunFiles:
    """One run's directory, filled an event at a time."""

    def __init__(self, directory: Path) -> None:
        self.paths = RunPaths(directory)
        self.paths.directory.mkdir()
        for each in self.paths.all():
            each.mkdir()

    def attempt(self, restart: int = 0, job_id: str = "7") -> int:
        return claim(
            self.paths,
            job_id=job_id,
            slurm_restart_count=restart,
            nodes=["n1", "n2"],
            addresses=[],
            port=0,
            code_version="v",
        ).number

    def rank(self, attempt: int, group: int = 0, rank: int = 0) -> EventWriter:
        return EventWriter(self.paths.events / f"a{attempt:04d}.r{group}.w{rank:05d}.jsonl", rank=rank)

    def steps(
        self, attempt: int, first: int, count: int, *, rework: int = 0, group: int = 0, until: int | None = None
    ) -> None:
        """One worker group of an attempt: restored at ``first``, then ``count`` steps."""
        events = self.rank(attempt, group)
        events.emit("phase", phase="restore")
        events.emit(
            "resume",
            resume_step=first,
            rework_steps=rework,
            world_size=4,
            slurm_restart_count=0,
            torchelastic_restart_count=group,
            last_cause=None,
        )
        events.emit("phase", phase="first_step", **({} if until is None else {"until": until}))
        events.emit("phase", phase="step")
        for start in range(first, first + count, 50):
            part = min(50, first + count - start)
            ends = [0.1 * (start - first + step) for step in range(part)]
            events.emit("window", first=start, mono0=0.0, end_s=ends)
        events.close()

    def end(self, attempt: int, cause: str, step: int | None, **more: Any) -> None:
        values = {"ended_at": time.time() + 5.0, "action": "requeue", "why": f"it was {cause}", **more}
        record_end(self.paths, AttemptRecord(number=attempt, cause=cause, end_step=step, **values))

    def verdict(self, state: str, **more: Any) -> None:
        values = {"state": state, "cause": "x", "attempt": 0, "step": 1, "why": "so it is", "error": "", **more}
        self.paths.verdict.write_text(json.dumps(values))
