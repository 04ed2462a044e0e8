"""The events that the jobs of one simulated cluster would have left behind, in the vocabulary of a real run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from resilient_launch.core.causes import Cause
from resilient_launch.core.events import SCHEMA
from resilient_launch.lab.cluster_sim.workload import Workload

STEP_S = 600.0
"""Work in one simulated step: coarse, because a trace covers months."""
_ROUNDING_S = 1e-6


class Trace:
    """Collects every job's events; ``write`` puts them where a run's events would be."""

    def __init__(self, workload: Workload) -> None:
        self.names = workload.names
        self.events: list[list[dict[str, Any]]] = [[] for _ in self.names]
        self._attempt = [-1] * len(self.names)
        self._reached = [0] * len(self.names)
        self._last_cause: list[Cause | None] = [None] * len(self.names)
        for job in range(len(self.names)):
            self._start(0.0, job)
            self.on_resume(0.0, job, 0.0)

    def write(self, directory: Path) -> None:
        """One run directory a job, with one file of events each. Raises OSError."""
        for name, events in zip(self.names, self.events, strict=True):
            folder = directory / name / "events"
            folder.mkdir(parents=True, exist_ok=True)
            lines = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
            (folder / "simulated.jsonl").write_text(lines)

    def on_save(self, t: float, job: int, status: str, work_s: float) -> None:
        self._emit(t, job, "checkpoint", step=_steps(work_s), status=status, reason="time")

    def on_failure(self, t: float, job: int, work_s: float) -> None:
        # A node that fails says nothing; the next attempt's claim is the next sign of life.
        self._last_cause[job] = Cause.NODE_FAILURE
        self._start(t, job)

    def on_resume(self, t: float, job: int, work_s: float) -> None:
        step = _steps(work_s)
        self._emit(
            t,
            job,
            "resume",
            resume_step=step,
            rework_steps=max(self._reached[job] - step, 0),
            world_size=1,
            slurm_restart_count=self._attempt[job],
            torchelastic_restart_count=0,
            last_cause=self._last_cause[job],
        )
        self._emit(t, job, "phase", phase="first_step")

    def on_compute(self, began: float, ended: float, job: int, work_s: float) -> None:
        """``job`` computed from ``began`` to ``ended`` and has done ``work_s`` of work by then."""
        before_s = work_s - (ended - began)
        first, last = _steps(before_s), _steps(work_s)
        if last > first:
            ends = [number * STEP_S - before_s for number in range(first + 1, last + 1)]
            self._emit(ended, job, "window", first=first, mono0=began, end_s=ends)
            self._reached[job] = max(self._reached[job], last)

    def _start(self, t: float, job: int) -> None:
        self._attempt[job] += 1
        count = self._attempt[job]
        self._emit(t, job, "attempt", by_rank=False, job_id="1", slurm_restart_count=count, nodes=["node0"])
        self._emit(t, job, "phase", phase="restore")

    def _emit(self, t: float, job: int, kind: str, *, by_rank: bool = True, **fields: Any) -> None:
        writer = {"attempt": self._attempt[job], "restart": 0, "node": 0, **({"rank": 0} if by_rank else {})}
        self.events[job].append({"v": SCHEMA, "kind": kind, "t": t, "mono": t, **writer, **fields})


def _steps(work_s: float) -> int:
    return math.floor(work_s / STEP_S + _ROUNDING_S)
