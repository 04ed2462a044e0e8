"""``rlaunch runs``."""

from __future__ import annotations

from typing import Annotated

import typer

from resilient_launch.cli.common import Root, root_of, table
from resilient_launch.core.errors import UsageError


def runs(
    root: Root = None,
    state: Annotated[
        list[str] | None, typer.Option(metavar="STATE", help="Only runs in this state, as in status. Repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="GLOB", help="Only runs whose name fits, as in 'llm-*'.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """List the runs under the root, newest first."""
    import fnmatch
    import json
    import time

    from resilient_launch.cli.gather import all_names, known
    from resilient_launch.cli.status import standings
    from resilient_launch.core.causes import RunState

    words = [each.value for each in RunState]
    for word in state or ():
        if word not in words:
            raise UsageError(f"state {word!r}", why="is not one", hint=f"one of {', '.join(words)}")
    directory = root_of(root)
    names = [each for each in all_names(directory) if name is None or fnmatch.fnmatchcase(each, name)]
    records = {run.record.name: run.record for run in known(names, directory)}
    stands, silences = standings(names, directory)
    order = sorted(stands, key=lambda each: -records[each.name].created_at)
    shown = [each for each in order if not state or each.state in state]
    if as_json:
        found = [
            {
                "name": each.name,
                "id": records[each.name].id,
                "created_at": records[each.name].created_at,
                "cluster": records[each.name].cluster,
                "state": each.state,
                "job_id": each.job_id,
                "step": each.step,
                "attempts": len(each.attempts),
                "code_version": records[each.name].code_version,
            }
            for each in shown
        ]
        typer.echo(json.dumps({"schema": 1, "runs": found, "silent": silences}, default=str))
        return
    for line in silences:
        typer.echo(line, err=True)
    rows = [
        (
            each.name,
            time.strftime("%F %H:%M", time.localtime(records[each.name].created_at)),
            records[each.name].cluster,
            each.state.value,
            each.step,
            len(each.attempts),
            records[each.name].code_version[:12],
        )
        for each in shown
    ]
    if rows:
        typer.echo(table(("run", "created", "cluster", "state", "step", "attempts", "code"), rows))
    else:
        typer.echo(f"no such runs in {directory}", err=True)
