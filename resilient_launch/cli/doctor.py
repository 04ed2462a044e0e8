"""``rlaunch doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from resilient_launch.cli.common import Root, root_of
from resilient_launch.core.errors import EXIT_FAILED

_SIGNS = {"good": "✓", "bad": "✗", "unknown": "?"}
_PLAIN = {"good": "ok", "bad": "NO", "unknown": "??"}


def doctor(
    root: Root = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Also ask Slurm's controller for its settings.")] = False,
    from_nodes: Annotated[
        str,
        typer.Option("--from-nodes", metavar="NODES", help="Let these nodes look at the storage too: n[1-2]."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Look at this machine, its storage and its Slurm, and say what will go wrong and what to do about it."""
    import json
    import sys
    from dataclasses import asdict

    from resilient_launch.report.doctor import examine

    found = examine(root_of(root), with_cluster=cluster, from_nodes=from_nodes)
    if as_json:
        typer.echo(json.dumps({"schema": 1, "findings": [asdict(each) for each in found]}))
    else:
        signs = _SIGNS if "utf" in (sys.stdout.encoding or "").lower() else _PLAIN
        for each in found:
            typer.echo(f"{signs[each.verdict]} {each.what}: {each.found}")
            if each.consequence:
                typer.echo(f"    {each.consequence}")
            if each.fix and each.verdict != "good":
                typer.echo(f"    try: {each.fix}")
    if any(each.verdict == "bad" for each in found):
        raise typer.Exit(EXIT_FAILED)
