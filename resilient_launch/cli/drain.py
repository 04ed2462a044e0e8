"""``rlaunch drain``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilient_launch.cli.common import root_of, table
from resilient_launch.core.errors import EXIT_FAILED

if TYPE_CHECKING:
    from resilient_launch.launch.drain import Drained, LiveRun

POLL_S = 1.0


def drain(
    nodes: Annotated[str | None, typer.Option(metavar="LIST", help="Empty these nodes; the runs stay held.")] = None,
    reservation: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Empty a reservation's nodes; the runs queue for its end.", show_default=False
        ),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Whatever would run at that time, as 2h or 2026-05-01T06:00; held."),
    ] = None,
    root: Annotated[
        list[Path] | None,
        typer.Option(help="Where runs live; repeat it for several users'.  [default: RLAUNCH_ROOT, or ./runs]"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say which runs, ask none.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Give up waiting after this long.")] = 1800.0,
) -> None:
    """Let every run in the way of a maintenance save, leave its nodes, and queue again for afterwards."""
    from resilient_launch.cluster.slurm import SlurmCommands
    from resilient_launch.launch import drain as launch

    roots = [root_of(each) for each in root] if root else [root_of(None)]
    runs = launch.live_runs(roots)
    scheduler = runs[0].connection.scheduler if runs else SlurmCommands()
    when = None if before is None else parse_when(before, now=time.time())
    window = launch.window_of(scheduler, nodes=nodes, reservation=reservation, before=when)
    chosen = launch.touched(runs, window)
    if not chosen:
        typer.echo(f"no run under {', '.join(map(str, roots))} is in the way")
        return
    if dry_run:
        typer.echo(table(("run", "job", "user", "nodes"), [_row(run) for run in chosen]))
        return
    _wait([launch.ask(run, window) for run in chosen], timeout)


def parse_when(text: str, *, now: float) -> float:
    """Seconds since the epoch of an ISO time, or of a duration from ``now``. Raises UsageError."""
    from datetime import datetime

    from resilient_launch.core.errors import UsageError
    from resilient_launch.core.units import parse_duration

    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        pass
    try:
        return now + parse_duration(text)
    except UsageError as error:
        raise UsageError(
            f"time {text[:80]!r}", why="is neither a date nor a duration", hint="--before 2h, or 2026-05-01T06:00"
        ) from error


def _row(run: LiveRun) -> tuple[str, str, str, str]:
    return (run.paths.name, run.job_id, run.user, ",".join(run.nodes))


def _wait(drained: list[Drained], timeout_s: float) -> None:
    """A table that lives until every run is out: rewritten on a terminal, a line a change elsewhere."""
    from resilient_launch.launch.drain import progress

    deadline = time.monotonic() + timeout_s
    is_live, num_lines = sys.stderr.isatty(), 0
    said: dict[str, str] = {}
    while True:
        states = [progress(each) for each in drained]
        rows = [(*_row(each.run), word) for each, (word, _) in zip(drained, states, strict=True)]
        shown = table(("run", "job", "user", "nodes", "state"), rows)
        if is_live:
            sys.stderr.write(f"\x1b[{num_lines}A\x1b[J{shown}\n" if num_lines else f"{shown}\n")
            num_lines = shown.count("\n") + 1
        else:
            for row in rows:
                if said.get(row[1]) != row[4]:
                    said[row[1]] = row[4]
                    sys.stderr.write(f"{row[0]}: {row[4]}\n")
        sys.stderr.flush()
        waits = [each for each, (_, is_out) in zip(drained, states, strict=True) if not is_out and not each.problem]
        if not waits or time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    typer.echo(shown)
    if not all(is_out for _, is_out in states):
        raise typer.Exit(EXIT_FAILED)
