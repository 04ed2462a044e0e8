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

    from resilient_launch.report.stagger import SCHEMA, group_status

    groups = {group.absolute(): None} if group is not None else _groups(root_of(root))
    if not groups:
        typer.echo(f"no run in {root_of(root)} has a stagger.group; next: rlaunch stagger status GROUP", err=True)
        return
    while True:
        found = [group_status(directory, writers=writers) for directory, writers in groups.items()]
        if watch and not as_json and sys.stdout.isatty():
            typer.echo("\x1b[H\x1b[2J", nl=False)
        if as_json:
            typer.echo(json.dumps(found[0] if group is not None else {"schema": SCHEMA, "groups": found}))
        else:
            typer.echo("\n\n".join(_text(each) for each in found))
        if not watch:
            return
        time.sleep(WATCH_S)


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
    lines = [
        f"{record['group']}: {len(record['writing'])} of {record['writers']} write, {len(record['waiting'])} wait; "
        f"a turn takes {format_duration(round(record['mean_turn_s']))}{speed}"
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
