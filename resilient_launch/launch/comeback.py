"""Letting a run go on that ended without being finished: as the job it had, or as the same job under a new id."""

from __future__ import annotations

import contextlib
import time

from resilient_launch.cluster.base import JobView
from resilient_launch.cluster.slurm import SlurmCommands
from resilient_launch.core.errors import RefusedError
from resilient_launch.core.paths import RunPaths
from resilient_launch.job import control
from resilient_launch.job.attempt import read_attempts, read_ends
from resilient_launch.job.requeue import resubmit_run
from resilient_launch.launch.clusters import Connection
from resilient_launch.launch.records import read_run
from resilient_launch.launch.submit import locked, verdict_set_aside
from resilient_launch.policy import waits
from resilient_launch.policy.notice import DEFAULT_GRACE_S

_EVERY_ATTEMPT = 10**9


def newest_job(paths: RunPaths) -> str:
    """The id of the run's newest job; empty before its first."""
    jobs = read_run(paths).jobs
    return jobs[-1] if jobs else ""


def wait_left_s(paths: RunPaths, scheduler: SlurmCommands, *, pending_s: float) -> float:
    """Seconds that the run's job, requeued and pending for ``pending_s``, should still wait before it starts again.

    Asks Slurm where the last attempt ended without a word. Raises UnreachableError, RefusedError.
    """
    attempts = read_attempts(paths)
    end = read_ends(paths).get(attempts[-1].number) if attempts else None
    kill_wait_s = scheduler.kill_wait_s() if end is None else None
    return waits.wait_left_s(
        now=time.time(),
        not_before=None if end is None else end.not_before,
        pending_s=pending_s,
        kill_wait_s=DEFAULT_GRACE_S if kill_wait_s is None else kill_wait_s,
    )


def submit_again(paths: RunPaths, connection: Connection) -> str:
    """Submit the run's newest job once more, as it was; returns the new id.

    The new job waits until the old one is over. The verdict is taken away, and stays where the submission is refused.
    Raises RefusedError, UnreachableError.
    """
    with locked(paths), verdict_set_aside(paths):
        control.clear(paths, _EVERY_ATTEMPT, is_final=True)
        return resubmit_run(paths, newest_job(paths), connection.env)


def go_on(paths: RunPaths, connection: Connection) -> str:
    """Let the run go on, whatever keeps it from doing so; returns what was done, in words.

    Does nothing for a run that waits for nodes, or was requeued already. Raises RefusedError for one that is running
    or has no job.
    """
    job_id = newest_job(paths)
    if not job_id:
        raise RefusedError(f"run {paths.name!r}", why="has no job", hint="rlaunch submit CONFIG")
    scheduler = connection.scheduler
    view = scheduler.show(job_id)
    if view is None or view.is_over:
        return _restart(paths, connection, job_id, view)
    if view.state != "PENDING":
        raise RefusedError(
            f"run {paths.name!r}",
            why=f"is not waiting: job {job_id} is {view.state.lower()}",
            hint=f"rlaunch yield {paths.name}, to save and requeue it",
        )
    if is_held(view):
        scheduler.release(job_id)
        # It may have started already.
        with contextlib.suppress(RefusedError):
            _start(paths, scheduler, view)
        return f"released job {job_id}, which was held ({view.reason})"
    if view.reason == "BeginTime":
        left_s = _start(paths, scheduler, view)
        if left_s > 0:
            return f"job {job_id} starts in {left_s:.0f} s: its last attempt left no word, and may be alive until then"
        return f"job {job_id} need not wait any longer"
    return f"job {job_id} is in the queue already ({view.reason or 'waiting'})"


def _start(paths: RunPaths, scheduler: SlurmCommands, view: JobView) -> float:
    """Let a pending job start, as soon as its last attempt has had its time to end; returns the seconds until then.

    A wait that an end asked for is for the person who calls to cut short.
    """
    now, left_s = time.time(), 0.0
    attempts = read_attempts(paths)
    if attempts and attempts[-1].number not in read_ends(paths):
        pending_s = max(now - view.submit_time, 0.0) if view.submit_time is not None else 0.0
        left_s = wait_left_s(paths, scheduler, pending_s=pending_s)
    scheduler.start_at(view.job_id, now + left_s)
    return left_s


def is_held(view: JobView) -> bool:
    """Whether a pending job waits for somebody to release it."""
    reason = view.reason.lower()
    return "held" in reason or reason.startswith("jobhold")


def _restart(paths: RunPaths, connection: Connection, job_id: str, view: JobView | None) -> str:
    with locked(paths), verdict_set_aside(paths):
        # Slurm knows a job for some minutes after its end, and can requeue it as long.
        if view is not None:
            control.clear(paths, _EVERY_ATTEMPT, is_final=True)
            try:
                connection.scheduler.requeue(job_id)
            except RefusedError:
                pass
            else:
                return f"requeued job {job_id}"
        new_id = resubmit_run(paths, job_id, connection.env)
        return f"submitted again as job {new_id}"
