"""``rlaunch ckpt export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from resilient_launch.cli.ckpt.common import SCHEMA, AsJson, Which, look, pick
from resilient_launch.cli.common import Root, RunName


def export(
    run: RunName,
    checkpoint: Which = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="Where to write.  [default: RUN-STEP.safetensors or .pt, here]"),
    ] = None,
    form: Annotated[
        Literal["safetensors", "torch"],
        typer.Option("--format", help="torch is a plain file for torch.load(weights_only=True)."),
    ] = "safetensors",
    entry: Annotated[str, typer.Option(help="Which entry of the state, such as model or ema.")] = "model",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint's model, whole and under its own names, into one file for inference.

    Every byte is verified as it is read.
    """
    import json

    from resilient_launch.checkpoint.export import export as write
    from resilient_launch.core.units import format_size

    found = pick(look(run, root), checkpoint)
    step = found.id.step if found.id else 0
    target = to or Path(f"{run}-{step}.{'pt' if form == 'torch' else form}")
    done = write(found.path, target, form=form, entry=entry, is_forced=force)
    if done.skipped:
        typer.echo(f"note: left out, for they are no tensors: {', '.join(done.skipped)}", err=True)
    if as_json:
        value = {
            "schema": SCHEMA,
            "checkpoint": found.name,
            "path": str(target.absolute()),
            "num_tensors": done.num_tensors,
            "num_bytes": done.num_bytes,
            "skipped": list(done.skipped),
        }
        typer.echo(json.dumps(value))
        return
    size = format_size(done.num_bytes)
    typer.echo(f"{target}: {done.num_tensors} tensors of {entry} at step {step}, {size}, from {found.name}")
