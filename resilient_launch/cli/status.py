"""``rlaunch status``."""

from __future__ import annotations

from typing import Annotated

import typer

from resilient_launch.cli.common import Root, attempts_table, find_run, root_of, table
from resilient_launch.core.errors import RlaunchError


def status(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run's name; without it, every run.")] = None,
    root: Root = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say how a run stands, or list all runs."""
    import json

    from resilient_launch.report.state import SCHEMA, run_status

    if run is None:
        directory = root_of(root)
        names = sorted(entry.parent.name for entry in directory.glob("*/run.json"))
        stands, damaged = [], None
        for name in names:
            try:
                each = find_run(name, directory)
                stands.append(run_status(each.paths, each.connection.scheduler, each.job_id))
            except RlaunchError as error:
                # One bad run must not hide the others.
                damaged = error
                typer.echo(f"error: {error}", err=True)
        if as_json:
            typer.echo(json.dumps({"schema": SCHEMA, "runs": [each.as_json() for each in stands]}, default=str))
        elif stands:
            rows = [
                (each.name, each.job_id, str(each.state), each.step, len(each.attempts), each.reason) for each in stands
            ]
            typer.echo(table(("run", "job", "state", "step", "attempts", "reason"), rows))
        elif damaged is None:
            typer.echo(f"no runs in {directory}; next: rlaunch submit CONFIG", err=True)
        if damaged is not None:
            raise typer.Exit(damaged.exit_code)
        return
    one = find_run(run, root)
    standing = run_status(one.paths, one.connection.scheduler, one.job_id)
    if as_json:
        typer.echo(json.dumps(standing.as_json(), default=str))
        return
    reason = f" ({standing.reason})" if standing.reason else ""
    typer.echo(f"{standing.name}: {standing.state}{reason}, job {standing.job_id}")
    if standing.step is not None:
        age = "" if standing.checkpoint_age_s is None else f", {standing.checkpoint_age_s:.0f} s old"
        saved = "none" if standing.checkpoint_step is None else f"step {standing.checkpoint_step}{age}"
        typer.echo(f"step {standing.step}, newest checkpoint: {saved}")
    if standing.attempts:
        typer.echo(attempts_table(standing.attempts))
    if standing.error:
        typer.echo(standing.error)
