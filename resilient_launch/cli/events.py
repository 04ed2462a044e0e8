"""``rlaunch events``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from resilient_launch.cli.common import Root, RunName, root_of
from resilient_launch.core.errors import EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from resilient_launch.core.paths import RunPaths

POLL_S = 0.5


def events(
    run: RunName,
    root: Root = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as the run does, until it is over.")] = False,
    kind: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Only events of this kind. Repeatable.")
    ] = None,
    pack: Annotated[
        bool, typer.Option("--pack", help="Instead, compress the events of attempts that are over. Nothing is lost.")
    ] = False,
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
    if pack:
        _pack(paths)
        return
    tail = EventTail(paths.events)
    while True:
        over = not follow or read_verdict(paths) is not None
        for record in tail.new():
            if not kind or record["kind"] in kind:
                typer.echo(json.dumps(record, separators=(",", ":")))
        if over:
            return
        time.sleep(POLL_S)


def _pack(paths: RunPaths) -> None:
    from resilient_launch.core.units import format_size
    from resilient_launch.report.packing import pack_run

    packed = pack_run(paths)
    for error in packed.errors:
        typer.echo(f"error: {error}", err=True)
    typer.echo(f"{paths.name}: {packed.num_files} files packed, {format_size(packed.num_bytes)} given back")
    if packed.errors:
        raise typer.Exit(EXIT_FAILED)
