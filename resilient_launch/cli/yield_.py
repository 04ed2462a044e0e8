"""``rlaunch yield``."""

from __future__ import annotations

from typing import Annotated

import typer

from resilient_launch.cli.common import Root, RunName, find_run
from resilient_launch.core.errors import EXIT_FAILED, RlaunchError


def yield_(
    run: RunName,
    root: Root = None,
    hold: Annotated[bool, typer.Option("--hold", help="Hold it in the queue until: rlaunch requeue RUN.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Give up waiting after this long.")] = 1800.0,
) -> None:
    """Let a running run save, give its nodes back, and queue again."""
    from resilient_launch.job import control
    from resilient_launch.launch.requests import running_attempt, wait_for_end

    found = find_run(run, root)
    attempt = running_attempt(found.paths, found.connection)
    control.ask(found.paths, "yield", attempt=attempt.number, held=hold)
    end = wait_for_end(found.paths, found.connection, attempt, timeout_s=timeout)
    if end is None:
        raise RlaunchError(
            f"run {run!r}",
            why=f"has not said within {timeout:.0f} s that it left",
            hint=f"rlaunch status {run}; the request stands",
        )
    saved = "nothing saved" if end.saved_step is None else f"saved at step {end.saved_step}"
    held = ", held in the queue" if hold and end.action == "requeue" else ""
    typer.echo(f"{run}: {end.cause}, {saved}, {end.action}{held}")
    if hold:
        typer.echo(f"next: rlaunch requeue {run}", err=True)
    if end.action not in ("requeue", "done"):
        raise typer.Exit(EXIT_FAILED)
