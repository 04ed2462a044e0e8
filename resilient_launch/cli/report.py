"""``rlaunch report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilient_launch.cli.common import Root, complete_run, root_of, write_text
from resilient_launch.core.errors import UsageError

if TYPE_CHECKING:
    from resilient_launch.report.accounts import RunReport


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Runs by name; none is all.", autocompletion=complete_run),
    ] = None,
    root: Root = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Attempts that began since: 7d, 12h, or 2026-01-31.", show_default=False),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write one self-contained page.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    metrics: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write FILE for Prometheus' textfile collector.", show_default=False),
    ] = None,
) -> None:
    """Say where the time of runs went: goodput, its losses, failures, checkpoints, and what would save most."""
    import json

    from resilient_launch.cli.gather import all_names, gather

    directory = root_of(root)
    names = runs or all_names(directory)
    if not names:
        typer.echo(f"no runs in {directory}; next: rlaunch submit CONFIG", err=True)
        return
    found = gather(names, directory, since_s=_since(since), in_full=html is not None)
    if html is not None:
        write_text(html, _page(found))
    if metrics is not None:
        from resilient_launch.report.metrics import exposition

        write_text(metrics, exposition(found))
    if as_json:
        from resilient_launch.report.document import SCHEMA
        from resilient_launch.report.document import as_json as document

        documents = [document(each) for each in found]
        whole = documents[0] if runs and len(runs) == 1 else {"schema": SCHEMA, "runs": documents}
        typer.echo(json.dumps(whole, default=str))
    else:
        typer.echo(_text(found))


def _page(found: list[RunReport]) -> str:
    from resilient_launch.report.html import page

    return page(found)


def _text(found: list[RunReport]) -> str:
    import os
    import sys

    from resilient_launch.report.text import Style, render, summary

    style = Style(
        colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb",
        unicode="utf" in (sys.stdout.encoding or "").lower(),
    )
    return render(found[0], style) if len(found) == 1 else summary(found)


def _since(text: str | None) -> float:
    """Wall-clock seconds of a moment: so long ago, or an ISO date or time of this machine's zone."""
    import datetime
    import time

    from resilient_launch.core.units import parse_duration

    if text is None:
        return float("-inf")
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        pass
    try:
        return time.time() - parse_duration(text)
    except UsageError as error:
        raise UsageError(
            f"--since {text!r}", why="is neither a duration nor a date", hint="--since 7d, or --since 2026-01-31"
        ) from error
