"""``rlaunch cancel``."""

from __future__ import annotations

import typer

from resilient_launch.cli.common import Root, RunName, find_run
from resilient_launch.core.errors import RefusedError


def cancel(run: RunName, root: Root = None) -> None:
    """End a run's job. It saves if time allows, and does not come back; submit it again to go on from there."""
    found = find_run(run, root)
    from resilient_launch.report.state import read_verdict

    verdict = read_verdict(found.paths)
    if verdict is not None:
        typer.echo(f"{run} is over already: {verdict['state']}")
        return
    if not found.job_id:
        raise RefusedError(f"run {run!r}", why="has no job", hint="rlaunch submit CONFIG")
    found.connection.scheduler.cancel(found.job_id)
    typer.echo(f"cancelled job {found.job_id} of {run}")
    typer.echo(f"next: rlaunch status {run}", err=True)
