"""``rlaunch requeue``."""

from __future__ import annotations

import typer

from resilient_launch.cli.common import Root, RunName, find_run
from resilient_launch.core.errors import RefusedError


def requeue(run: RunName, root: Root = None) -> None:
    """Let a run go on: release it when it is held, queue it again when it has ended without being finished."""
    from resilient_launch.launch.comeback import go_on
    from resilient_launch.report.state import read_verdict

    found = find_run(run, root)
    verdict = read_verdict(found.paths)
    if verdict is not None and verdict.get("state") == "finished":
        raise RefusedError(f"run {run!r}", why="is finished", hint=f"rlaunch status {run}")
    typer.echo(f"{run}: {go_on(found.paths, found.connection)}")
    typer.echo(f"next: rlaunch wait {run}", err=True)
