"""``rlaunch ckpt gc``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilient_launch.cli.ckpt.common import SCHEMA, AsJson, Looked, look
from resilient_launch.cli.common import Root, RunName, table
from resilient_launch.core.errors import EXIT_FAILED

if TYPE_CHECKING:
    from resilient_launch.core.ids import CheckpointId


def gc(
    run: RunName,
    root: Root = None,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Keep this many of the newest, whatever the configuration says.")
    ] = None,
    quarantined: Annotated[
        bool, typer.Option("--quarantined", help="Remove also what was put aside as damaged or fenced.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Really remove; without it, only say what would go.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what retention would remove of a run's checkpoints, and with --delete remove it.

    The newest one that verifies (it is read to be sure) and the one that training was resumed from always stay, and
    where none verifies, all do.
    """
    import json

    from resilient_launch.checkpoint.store.collect import plan, remove
    from resilient_launch.core.units import format_size
    from resilient_launch.policy.retention import newest

    looked = look(run, root)
    fates = plan(
        looked.found,
        newest(keep) if keep else looked.prospect.config.retention(),
        verified=_newest_verified(looked),
        resumed_from=looked.prospect.resumed_from,
        is_idle=looked.prospect.is_idle,
        with_quarantined=quarantined,
    )
    doomed = [fate for fate in fates if fate.goes]
    gone = {fate.found.name: remove(fate.found.path) for fate in doomed} if delete else {}
    doomed_bytes = sum(fate.found.num_bytes for fate in doomed)
    freed_bytes = sum(fate.found.num_bytes for fate in doomed if gone.get(fate.found.name))
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "name": fate.found.name,
                "num_bytes": fate.found.num_bytes,
                "goes": fate.goes,
                "why": fate.why,
                "is_removed": gone.get(fate.found.name, False),
            }
            for fate in fates
        ]
        sizes = {"doomed_bytes": doomed_bytes, "freed_bytes": freed_bytes}
        typer.echo(json.dumps({"schema": SCHEMA, "name": run, "is_dry_run": not delete, **sizes, "checkpoints": rows}))
    elif fates:
        header = ("checkpoint", "size", "", "why")
        rows_ = [
            (fate.found.name, format_size(fate.found.num_bytes), _word(fate.goes, gone.get(fate.found.name)), fate.why)
            for fate in fates
        ]
        typer.echo(table(header, rows_))
        freed = f"freed {format_size(freed_bytes)}" if delete else f"would free {format_size(doomed_bytes)}"
        typer.echo(f"{run}: {freed} of {len(doomed)} directories")
    if not delete and doomed and not as_json:
        typer.echo(f"next: rlaunch ckpt gc {run} --delete", err=True)
    if not all(gone.values()):
        raise typer.Exit(EXIT_FAILED)


def _word(goes: bool, is_removed: bool | None) -> str:
    if not goes:
        return "stays"
    return {None: "goes", True: "removed", False: "can't be removed"}[is_removed]


def _newest_verified(looked: Looked) -> set[CheckpointId]:
    """The newest checkpoint whose every byte is right; nothing older has to be read."""
    from resilient_launch.checkpoint.store import Standing, verify

    for each in looked.found:
        if each.id is not None and each.standing in (Standing.CHOSEN, Standing.OLDER):
            (verdict,) = verify([each.path], run_id=looked.prospect.lineage.run_id)
            if verdict.is_intact:
                return {each.id}
    return set()
