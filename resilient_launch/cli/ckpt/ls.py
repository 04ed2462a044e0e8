"""``rlaunch ckpt ls``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from resilient_launch.cli.ckpt.common import SCHEMA, AsJson, age, look
from resilient_launch.cli.common import Root, RunName, table

if TYPE_CHECKING:
    from resilient_launch.checkpoint.store import Found


def ls(run: RunName, root: Root = None, as_json: AsJson = False) -> None:
    """List a run's checkpoints, newest of the lineage first, and why a resume would use this one and not that one.

    Only manifests are read. The chosen one is used if its files verify when they are loaded; rlaunch ckpt verify reads
    them now.
    """
    import json

    from resilient_launch.core.units import format_size

    looked = look(run, root)
    if as_json:
        rows = [_as_json(each) for each in looked.found]
        typer.echo(json.dumps({"schema": SCHEMA, "name": run, "checkpoints": rows}))
        return
    if not looked.found:
        typer.echo(f"{run}: no checkpoints in {looked.paths.checkpoints}", err=True)
        return
    header = ("step", "checkpoint", "size", "saved", "for", "ranks", "from", "standing", "why")
    lines = []
    for each in looked.found:
        facts = each.manifest.facts if each.manifest else None
        lines.append(
            (
                each.id.step if each.id else None,
                each.name,
                format_size(each.num_bytes),
                age(each.manifest.saved_at) if each.manifest else None,
                (facts.reason or None) if facts else None,
                facts.world_size if facts else None,
                _short(facts.parent) if facts else None,
                str(each.standing),
                each.why,
            )
        )
    typer.echo(table(header, lines))


def _short(parent: str | None) -> str | None:
    """A parent without its leading zeros: 200.a0.r0."""
    from resilient_launch.core.ids import CheckpointId

    ident = CheckpointId.parse(parent) if parent else None
    return f"{ident.step}.a{ident.attempt}.r{ident.restart}" if ident else None


def _as_json(found: Found) -> dict[str, Any]:
    manifest = found.manifest
    facts = manifest.facts if manifest else None
    return {
        "name": found.name,
        "path": str(found.path),
        "step": found.id.step if found.id else None,
        "attempt": found.id.attempt if found.id else None,
        "restart": found.id.restart if found.id else None,
        "num_bytes": found.num_bytes,
        "saved_at": manifest.saved_at if manifest else None,
        "training_s": facts.training_s if facts else None,
        "reason": facts.reason if facts else None,
        "world_size": facts.world_size if facts else None,
        "parent": facts.parent if facts else None,
        "run_id": facts.run_id if facts else None,
        "code_version": facts.code_version if facts else None,
        "metadata": dict(facts.metadata) if facts else None,
        "standing": str(found.standing),
        "why": found.why,
    }
