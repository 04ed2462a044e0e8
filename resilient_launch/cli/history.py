"""``rlaunch history``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilient_launch.cli.common import Root, RunName, find_run, table

if TYPE_CHECKING:
    from resilient_launch.cluster.base import JobRow
    from resilient_launch.report.attempts import AttemptRow


def history(
    run: RunName,
    root: Root = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Every admission of a run: what its files say, beside what Slurm's accounting says."""
    import json

    from resilient_launch.core.errors import RlaunchError
    from resilient_launch.launch.records import read_run
    from resilient_launch.report.attempts import attempt_rows

    found = find_run(run, root)
    attempts = attempt_rows(found.paths)
    rows: list[JobRow] = []
    for job_id in read_run(found.paths).jobs:
        try:
            rows += found.connection.scheduler.history(job_id)
        except RlaunchError as error:
            typer.echo(f"note: {error.what}", err=True)
    joined = [_joined(attempt, row) for attempt, row in _pairs(attempts, rows)]
    if as_json:
        typer.echo(json.dumps({"schema": 1, "name": run, "admissions": joined}, default=str))
        return
    if not rows:
        typer.echo("note: Slurm's accounting has nothing on this run: this is what its files say", err=True)
    if not joined:
        typer.echo(f"{run}: never admitted", err=True)
        return
    header = ("attempt", "job", "cause", "Slurm", "start", "end", "exit", "resume", "steps", "nodes")
    typer.echo(table(header, [[each[key] for key in _COLUMNS] for each in joined]))


_COLUMNS = (
    "attempt",
    "job_id",
    "cause",
    "slurm_state",
    "start",
    "end",
    "slurm_exit",
    "resume_step",
    "end_step",
    "nodes",
)


def _pairs(attempts: list[AttemptRow], rows: list[JobRow]) -> list[tuple[AttemptRow | None, JobRow | None]]:
    """Each attempt with the allocation that it was claimed in, in order of time; what has no partner stays alone."""
    from resilient_launch.report.allocation import partner

    left = list(rows)
    pairs: list[tuple[AttemptRow | None, JobRow | None]] = []
    for attempt in attempts:
        row = partner(attempt.job_id, attempt.claimed_at, left)
        if row is not None:
            left.remove(row)
        pairs.append((attempt, row))
    pairs += [(None, row) for row in left]
    return sorted(
        pairs, key=lambda pair: pair[0].claimed_at if pair[0] else (pair[1].start_time or 0) if pair[1] else 0
    )


def _joined(attempt: AttemptRow | None, row: JobRow | None) -> dict[str, Any]:
    start = row.start_time if row else attempt.claimed_at if attempt else None
    end = row.end_time if row else attempt.claimed_at + attempt.seconds if attempt and attempt.cause else None
    return {
        "attempt": attempt.number if attempt else None,
        "job_id": attempt.job_id if attempt else row.job_id if row else "",
        "cause": (attempt.cause or "running") if attempt else "no attempt",
        "slurm_state": row.state if row else None,
        "start": _clock(start),
        "end": _clock(end),
        "slurm_exit": None if row is None or row.exit_code is None else f"{row.exit_code}:{row.exit_signal or 0}",
        "resume_step": attempt.resume_step if attempt else None,
        "end_step": attempt.end_step if attempt else None,
        "nodes": ",".join(attempt.nodes) if attempt else row.nodes if row else "",
        "why": attempt.why if attempt else "",
    }


def _clock(at: float | None) -> str | None:
    import time

    return None if not at else time.strftime("%F %T", time.localtime(at))
