"""``rlaunch stop``."""

from __future__ import annotations

from typing import Annotated

import typer

from resilient_launch.cli.common import Root, RunName, find_run
from resilient_launch.core.errors import RlaunchError


def stop(
    run: RunName,
    root: Root = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Give up waiting after this long.")] = 1800.0,
) -> None:
    """End a run for good: it saves first, however long that takes, and does not queue again."""
    from resilient_launch.launch.stopping import stop_run

    found = find_run(run, root)
    outcome = stop_run(found.paths, found.connection, timeout_s=timeout)
    if outcome is None:
        raise RlaunchError(
            f"run {run!r}",
            why=f"has not ended within {timeout:.0f} s",
            hint=f"rlaunch status {run}; the request stands",
        )
    typer.echo(f"{run}: {outcome}")
    typer.echo(f"next: rlaunch requeue {run}, to go on from there", err=True)
