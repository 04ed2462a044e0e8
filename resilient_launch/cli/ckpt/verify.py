"""``rlaunch ckpt verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilient_launch.cli.ckpt.common import SCHEMA, AsJson, look, pick
from resilient_launch.cli.common import Root, RunName
from resilient_launch.core.errors import EXIT_FAILED

if TYPE_CHECKING:
    from resilient_launch.checkpoint.store import Verified


def verify(
    run: RunName,
    checkpoints: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CHECKPOINT",
            help="Steps, names as ls prints them, or newest.  [default: all that are published]",
            show_default=False,
        ),
    ] = None,
    root: Root = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=256, help="How many read at once.  [default: one a core, 8 at most]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read every byte of checkpoints and compare it with their manifests; exits with 1 unless all are intact.

    Nothing is put aside or changed. Verdicts: intact, bit-flipped, truncated, too long, shard-missing,
    manifest-damaged, foreign, unsupported, unreadable.
    """
    import json

    from resilient_launch.checkpoint.store import Standing
    from resilient_launch.checkpoint.store import verify as verify_all

    looked = look(run, root)
    hidden = (Standing.QUARANTINED, Standing.UNFINISHED)
    found = (
        [pick(looked, each) for each in checkpoints]
        if checkpoints
        else [each for each in looked.found if each.standing not in hidden]
    )
    progress = _Progress()
    verdicts = verify_all(
        [each.path for each in found],
        run_id=looked.prospect.lineage.run_id,
        num_threads=threads,
        on_start=progress.start,
        on_progress=progress.advance,
    )
    progress.close()
    if as_json:
        rows = [_as_json(verdict) for verdict in verdicts]
        is_intact = all(verdict.is_intact for verdict in verdicts)
        typer.echo(json.dumps({"schema": SCHEMA, "name": run, "is_intact": is_intact, "checkpoints": rows}))
    else:
        _print(run, verdicts)
    if not all(verdict.is_intact for verdict in verdicts):
        raise typer.Exit(EXIT_FAILED)


class _Progress:
    """A bar on a terminal's stderr, nothing elsewhere."""

    def __init__(self) -> None:
        self._bar: Any = None

    def start(self, total_bytes: int) -> None:
        import sys

        if sys.stderr.isatty() and total_bytes:
            self._bar = typer.progressbar(length=total_bytes, label="verifying", file=sys.stderr)
            self._bar.__enter__()

    def advance(self, num_bytes: int) -> None:
        if self._bar is not None:
            self._bar.update(num_bytes)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)


def _as_json(verdict: Verified) -> dict[str, Any]:
    return {
        "name": verdict.name,
        "verdict": str(verdict.integrity),
        "num_bytes": verdict.num_bytes,
        "problems": [
            {"file": problem.file, "kind": str(problem.kind), "why": problem.why} for problem in verdict.problems
        ],
    }


def _print(run: str, verdicts: list[Verified]) -> None:
    from resilient_launch.core.units import format_size

    if not verdicts:
        typer.echo(f"{run}: no checkpoints", err=True)
    for verdict in verdicts:
        typer.echo(f"{verdict.name}: {verdict.integrity}, {format_size(verdict.num_bytes)} read")
        for problem in verdict.problems:
            typer.echo(f"  {problem.file}: {problem.kind}: {problem.why}")
    if any(not verdict.is_intact for verdict in verdicts):
        typer.echo(f"next: rlaunch ckpt ls {run}, to see what a resume would use", err=True)
