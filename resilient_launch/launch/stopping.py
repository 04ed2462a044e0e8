"""Ending a run for good, wherever it stands."""

from __future__ import annotations

import json
import time

from resilient_launch.core import durable
from resilient_launch.core.causes import Cause, RunState
from resilient_launch.core.paths import RunPaths
from resilient_launch.job import control
from resilient_launch.launch.clusters import Connection
from resilient_launch.launch.comeback import newest_job

POLL_S = 0.5


def stop_run(paths: RunPaths, connection: Connection, *, timeout_s: float) -> str | None:
    """Make the run save and end, or leave the queue; returns how it stands, None while it still ends at ``timeout_s``.

    Repeatable: a run that is over stays as it is. The request stands until there is a verdict, so that an attempt that
    starts meanwhile finds it. Raises UnreachableError before anything is asked for, and RefusedError.
    """
    deadline = time.monotonic() + timeout_s
    if (verdict := _verdict(paths)) is not None:
        return f"{verdict.get('state')} already: {verdict.get('why')}"
    # Slurm must answer before anything is left behind that would stop the run later.
    view = connection.scheduler.show(newest_job(paths)) if newest_job(paths) else None
    control.ask(paths, "stop")
    while True:
        if (verdict := _verdict(paths)) is not None:
            return f"{verdict.get('state')} at step {verdict.get('step')}: {verdict.get('why')}"
        job_id = newest_job(paths)
        view = connection.scheduler.show(job_id) if job_id else None
        if view is not None and view.state == "PENDING":
            connection.scheduler.cancel(job_id)
        elif view is None or view.is_over:
            return _stop_here(paths, f"stopped on request while job {job_id or 'none'} was not running")
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_S)


def unfinish(paths: RunPaths, why: str) -> None:
    """Make a finished run a stopped one, which may be submitted again; any other stays as it is."""
    verdict = _verdict(paths)
    if verdict is not None and verdict.get("state") == RunState.FINISHED:
        changed = {**verdict, "state": RunState.STOPPED, "why": why}
        durable.replace_file(paths.verdict, json.dumps(changed, indent=1).encode())


def _stop_here(paths: RunPaths, why: str) -> str:
    """Write the verdict that nobody else is left to write, unless somebody did in the very end."""
    if (verdict := _verdict(paths)) is not None:
        return f"{verdict.get('state')} at step {verdict.get('step')}: {verdict.get('why')}"
    verdict = {"state": RunState.STOPPED, "cause": Cause.CANCELLED, "attempt": None, "step": None, "why": why}
    durable.claim_file(paths.verdict, json.dumps({**verdict, "error": ""}, indent=1).encode())
    control.withdraw(paths, "stop")
    return f"stopped: {why}"


def _verdict(paths: RunPaths) -> dict[str, object] | None:
    try:
        verdict = json.loads(paths.verdict.read_bytes())
    except (OSError, ValueError):
        return None
    return verdict if isinstance(verdict, dict) else None
