"""``rlaunch stagger``: groups of runs that take turns at saving."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from resilient_launch.cli.common import Root, root_of, table

WATCH_S = 2.0

app = typer.Typer(no_args_is_help=True, help="Look at groups of runs that take turns at saving.")


@app.callback()
def _group() -> None:
    """Look at groups of runs that take turns at saving."""


@app.command("status")
def status(
    group: Annotated[
        Path | None,
        typer.Argument(metavar="[GROUP]", help="The group's directory; without it, the groups of all runs."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until interrupted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a look on stdout.")] = False,
    root: Root = None,
) -> None:
    """Say who writes, who waits, since when, and when its turn should come."""
    import json
    import sys
    import time

    from resilient_launch.core.errors import RefusedError
    from resilient_launch.report.stagger import SCHEMA, group_status

    groups = {group.absolute(): None} if group is not None else _groups(root_of(root))
    if not groups:
        typer.echo(f"no run in {root_of(root)} has a stagger.group; next: rlaunch stagger status GROUP", err=True)
        if as_json:
            typer.echo(json.dumps({"schema": SCHEMA, "groups": []}))
        return
    has_looked = False
    while True:
        try:
            found = [group_status(directory, writers=writers) for directory, writers in groups.items()]
        except RefusedError as error:
            # Whoever watches wants to see it come back: the next run to save makes the directory anew.
            if not (watch and has_looked):
                raise
            typer.echo(f"warning: {error}", err=True)
            time.sleep(WATCH_S)
            continue
        has_looked = True
        if watch and not as_json and sys.stdout.isatty():
            typer.echo("\x1b[H\x1b[2J", nl=False)
        if as_json:
            typer.echo(json.dumps(found[0] if group is not None else {"schema": SCHEMA, "groups": found}))
        else:
            typer.echo("\n\n".join(_text(each) for each in found))
        if not watch:
            return
        sys.stdout.flush()
        time.sleep(WATCH_S)


@app.command("probe")
def probe(
    group: Annotated[Path, typer.Argument(metavar="GROUP", help="The group's directory; made if it is missing.")],
    from_nodes: Annotated[
        str, typer.Option("--from-nodes", metavar="NODES", help="Let these nodes look at it too: n[1-2].")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Try out the group's file system; what is found decides the lock that the group uses from now on."""
    import json

    from resilient_launch.report.stagger import probe_group

    found = probe_group(group.absolute(), from_nodes=from_nodes)
    if as_json:
        typer.echo(json.dumps(found))
        return
    words = {True: "yes", False: "no", None: "not found out"}
    rows = [
        ("flock excludes other processes", words[found["flock_excludes"]]),
        ("flock excludes other nodes", words[found["flock_excludes_nodes"]]),
        ("rename is atomic", words[found["rename_is_atomic"]]),
        ("exclusive creation is honest", words[found["exclusive_create_is_honest"]]),
        ("a new file shows after", _seconds(found["listing_delay_s"])),
        ("the server's clock is ahead by", _seconds(found["clock_offset_s"])),
    ]
    typer.echo(table(("", found["directory"]), rows))
    typer.echo(f"the group's lock: {found['lock']}")
    if found["silent_nodes"]:
        typer.echo(f"warning: no answer from {', '.join(found['silent_nodes'])}", err=True)
    if found["flock_excludes_nodes"] is None:
        typer.echo("next: rlaunch stagger probe GROUP --from-nodes NODES asks between nodes", err=True)


def _seconds(value_s: float | None) -> str:
    return "not found out" if value_s is None else f"{value_s:.2g} s"


def _groups(root: Path) -> dict[Path, int | None]:
    """The groups of the runs in ``root``, each with its number of writers."""
    from resilient_launch.config import load
    from resilient_launch.core.errors import RlaunchError

    found: dict[Path, int | None] = {}
    for path in sorted(root.glob("*/config.yaml")):
        try:
            shared = load(path, frozen=True).stagger
        except RlaunchError:
            continue
        if shared.group is not None:
            found[shared.group] = shared.writers
    return found


def _text(record: dict[str, Any]) -> str:
    from resilient_launch.core.units import format_duration, format_size

    speed = "" if record["bytes_per_s"] is None else f", {format_size(record['bytes_per_s'])}/s a writer"
    turn_s = record["mean_turn_s"]
    takes = (
        f"a turn takes {format_duration(round(turn_s, 0 if turn_s >= 10 else 1))}" if turn_s else "no turn is measured"
    )
    lines = [
        f"{record['group']}: {len(record['writing'])} of {record['writers']} write, {len(record['waiting'])} wait; "
        f"{takes}{speed}"
    ]
    rows = [("writing", each, "") for each in record["writing"]]
    rows += [("waiting", each, format_duration(round(each["expected_s"]))) for each in record["waiting"]]
    if rows:
        cells = [
            (
                place if each.get("due", True) else "early",
                each["run"],
                each["user"],
                each["job_id"] or "-",
                each["kind"],
                format_duration(round(each["since_s"])),
                expected,
            )
            for place, each, expected in rows
        ]
        lines.append(table(("", "run", "user", "job", "for", "since", "expected in"), cells))
    lines += [f"warning: {warning}" for warning in record["warnings"]]
    return "\n".join(lines)
