"""Where a run stands: its verdict, its attempts, and what Slurm says of its job."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from resilient_launch.checkpoint.store import published
from resilient_launch.cluster.base import JobView, Scheduler
from resilient_launch.core.causes import RunState
from resilient_launch.core.errors import UnreachableError
from resilient_launch.core.paths import RunPaths
from resilient_launch.policy import holds
from resilient_launch.report.attempts import AttemptRow, attempt_rows
from resilient_launch.report.queue import Answer

SCHEMA = 1
CLOCK_SKEW_S = 5.0


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """A run at one moment. ``reason`` is in words; ``job_state`` is Slurm's, empty where Slurm was not reached.

    ``step`` counts completed steps, ``checkpoint_step`` those in the newest checkpoint, ``checkpoint_age_s`` its age.
    ``explanation`` is what Slurm's reason means where the run waits for somebody to act; empty otherwise.
    ``steps_per_s`` is known while it runs, ``starts_at`` (wall clock) where Slurm has an estimate for a queued job.
    ``until_step`` is the script's last step where it said so, ``eta_s`` the seconds to it at the present rate.
    """

    name: str
    state: RunState
    reason: str
    job_id: str
    job_state: str
    step: int | None
    checkpoint_step: int | None
    checkpoint_age_s: float | None
    error: str
    attempts: tuple[AttemptRow, ...]
    steps_per_s: float | None = None
    starts_at: float | None = None
    explanation: str = ""
    until_step: int | None = None
    eta_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The status as ``rlaunch status --json`` prints it."""
        return {"schema": SCHEMA, **asdict(self)}


def read_verdict(paths: RunPaths) -> dict[str, Any] | None:
    """The run's verdict; None while there is none that can be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        verdict = json.loads(paths.verdict.read_bytes())
        return {"why": "", "error": "", **verdict, "state": RunState(verdict["state"])}
    return None


def run_status(paths: RunPaths, source: Scheduler | Answer | None, job_id: str) -> RunStatus:
    """How the run stands whose newest job is ``job_id``, by its files and by ``source``.

    That is a scheduler to ask, or what one answered for several runs at once. One that is out of reach, or None,
    leaves the files' word.
    """
    verdict = read_verdict(paths)
    view, unreachable = None, ""
    if verdict is None and job_id:
        if isinstance(source, Answer):
            view, unreachable = (
                source.views.get(job_id),
                "no answer" if source.silence and job_id not in source.views else "",
            )
        elif source is not None:
            try:
                view = source.show(job_id)
            except UnreachableError as error:
                unreachable = error.what
        # The verdict may have been written while Slurm was asked.
        verdict = read_verdict(paths)
    rows = attempt_rows(paths)
    state, reason = _judge(verdict, view, rows, unreachable)
    checkpoint = next(iter(published(paths.checkpoints)), None)
    age_s = None
    if checkpoint is not None:
        with contextlib.suppress(OSError):
            age_s = max(time.time() - (paths.checkpoints / str(checkpoint)).stat().st_mtime, 0.0)
    step = max((row.end_step for row in rows if row.end_step is not None), default=None)
    step_s = rows[-1].step_s if state is RunState.RUNNING and rows else None
    until = next((row.until_step for row in reversed(rows) if row.until_step is not None), None)
    # What is ahead is counted from where the newest attempt is: it may be computing old steps again.
    at_step = rows[-1].end_step if rows else None
    return RunStatus(
        name=paths.name,
        state=state,
        reason=reason,
        job_id=job_id,
        job_state=view.state if view else "",
        step=step,
        checkpoint_step=checkpoint.step if checkpoint else None,
        checkpoint_age_s=age_s,
        error=str(verdict.get("error", "")) if verdict else "",
        attempts=tuple(rows),
        steps_per_s=1 / step_s if step_s else None,
        starts_at=view.start_time if view is not None and view.state == "PENDING" else None,
        explanation=holds.explain(view.reason) if view is not None and state is RunState.QUEUED else "",
        until_step=until,
        eta_s=max(until - at_step, 0) * step_s if step_s and until is not None and at_step is not None else None,
    )


def _judge(
    verdict: dict[str, Any] | None, view: JobView | None, rows: list[AttemptRow], unreachable: str
) -> tuple[RunState, str]:
    if verdict is not None:
        return RunState(verdict["state"]), str(verdict["why"])
    last = rows[-1] if rows else None
    if unreachable:
        return _of_attempt(last), f"Slurm is out of reach ({unreachable}); this is what the files say"
    if view is None or view.is_over:
        word = view.state.lower() if view else "no longer known to Slurm"
        if view is not None and view.state == "CANCELLED":
            return RunState.CANCELLED, "the job was cancelled"
        return RunState.FAILED, f"the job is {word}, and left no verdict"
    if view.state == "PENDING":
        return RunState.QUEUED, view.reason or "waiting"
    is_current = last is not None and _is_of(last, view)
    if view.state == "COMPLETING" or (last is not None and last.cause is not None):
        if view.state == "RUNNING" and last is not None and not is_current:
            return RunState.STARTING, "nodes are allocated"
        return RunState.INTERRUPTED, last.why if last else ""
    return _of_attempt(last if is_current else None), ""


def _is_of(row: AttemptRow, view: JobView) -> bool:
    """Whether the attempt belongs to the job's present run; a view of many jobs knows no restart count."""
    if view.restart_count is not None:
        return row.slurm_restart_count == view.restart_count
    return view.start_time is None or row.claimed_at > view.start_time - CLOCK_SKEW_S


def _of_attempt(row: AttemptRow | None) -> RunState:
    if row is None or row.resume_step is None:
        return RunState.STARTING
    if row.cause is not None:
        return RunState.INTERRUPTED
    return RunState.RESTARTING if row.phase in ("init", "restore") else RunState.RUNNING
