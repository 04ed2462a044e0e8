"""``rlaunch events``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from resilient_launch.cli.common import Root, RunName, root_of
from resilient_launch.core.errors import UsageError

POLL_S = 0.5


def events(
    run: RunName,
    root: Root = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as the run does, until it is over.")] = False,
    kind: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Only events of this kind. Repeatable.")
    ] = None,
) -> None:
    """Print a run's events, one JSON object a line, those that were read together in order of their wall clocks."""
    import json

    from resilient_launch.core.events import KINDS
    from resilient_launch.core.paths import RunPaths
    from resilient_launch.launch.records import read_run
    from resilient_launch.report.state import read_verdict
    from resilient_launch.report.tail import EventTail

    for word in kind or ():
        if word not in KINDS:
            raise UsageError(f"kind {word!r}", why="is not one", hint=f"one of {', '.join(KINDS)}")
    paths = RunPaths.of(run, root_of(root))
    read_run(paths)
    tail = EventTail(paths.events)
    while True:
        over = not follow or read_verdict(paths) is not None
        for record in tail.new():
            if not kind or record["kind"] in kind:
                typer.echo(json.dumps(record, separators=(",", ":")))
        if over:
            return
        time.sleep(POLL_S)
