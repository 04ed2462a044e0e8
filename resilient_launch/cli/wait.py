"""``rlaunch wait``."""

from __future__ import annotations

from typing import Annotated

import typer

from resilient_launch.cli.common import Root, RunName, find_run
from resilient_launch.core.errors import EXIT_OK, EXIT_WAIT_CANCELLED, EXIT_WAIT_FAILED, EXIT_WAIT_UNFINISHED


def wait(
    run: RunName,
    root: Root = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Give up after this long.")] = None,
) -> None:
    """Wait until a run is over. Exit codes: 0 finished, 100 failed, 101 not finished, 102 not found, 103 cancelled."""
    from resilient_launch.cli.follow import follow
    from resilient_launch.core.causes import RunState

    status = follow(find_run(run, root), timeout_s=timeout)
    typer.echo(f"{status.name}: {status.state}" + (f" ({status.reason})" if status.reason else ""))
    if status.error:
        typer.echo(status.error, err=True)
    codes = {
        RunState.FINISHED: EXIT_OK,
        RunState.CANCELLED: EXIT_WAIT_CANCELLED,
        RunState.FAILED: EXIT_WAIT_FAILED,
        RunState.STOPPED: EXIT_WAIT_FAILED,
    }
    raise typer.Exit(codes.get(status.state, EXIT_WAIT_UNFINISHED))
