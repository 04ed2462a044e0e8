"""``rlaunch checkpoint``."""

from __future__ import annotations

from typing import Annotated

import typer

from resilient_launch.cli.common import Root, RunName, find_run
from resilient_launch.core.errors import EXIT_FAILED, RlaunchError


def checkpoint(
    run: RunName,
    root: Root = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Give up waiting after this long.")] = 1800.0,
) -> None:
    """Let a running run save now, and wait until the checkpoint is durable. Training goes on."""
    from resilient_launch.job import control
    from resilient_launch.launch.requests import running_attempt, wait_for_save

    found = find_run(run, root)
    attempt = running_attempt(found.paths, found.connection)
    request = control.ask(found.paths, "checkpoint", attempt=attempt.number)
    outcome = wait_for_save(found.paths, found.connection, attempt, request, timeout_s=timeout)
    if outcome.step is None:
        control.withdraw(found.paths, "checkpoint", attempt=attempt.number)
        raise RlaunchError(f"run {run!r}", why=outcome.error, hint=f"rlaunch status {run}")
    note = f" ({outcome.error})" if outcome.error else ""
    typer.echo(f"{run}: step {outcome.step} is durable{note}")
    if outcome.error:
        raise typer.Exit(EXIT_FAILED)
