"""``rlaunch ckpt push`` and ``rlaunch ckpt pull``."""

from __future__ import annotations

from typing import Annotated

import typer

from resilient_launch.cli.ckpt.common import SCHEMA, AsJson, Which, look, pick
from resilient_launch.cli.common import Root, RunName

Url = Annotated[str, typer.Argument(metavar="URL", help="As in s3://bucket/run or file:///archive/run; one for a run.")]


def push(run: RunName, url: Url, checkpoint: Which = None, root: Root = None, as_json: AsJson = False) -> None:
    """Copy a checkpoint to an object store, or to any place that fsspec knows; verified as it is read.

    The manifest is put last and is what commits: a copy that broke off is not there, and can be repeated.
    """
    import json

    from resilient_launch.checkpoint.store.objects import ObjectStore
    from resilient_launch.core.units import format_size

    found = pick(look(run, root), checkpoint)
    is_new = ObjectStore.at(url).push(found.path)
    if as_json:
        value = {"schema": SCHEMA, "name": run, "checkpoint": found.name, "url": url, "is_new": is_new}
        typer.echo(json.dumps({**value, "num_bytes": found.num_bytes}))
        return
    done = f"{format_size(found.num_bytes)} pushed" if is_new else "is there already"
    typer.echo(f"{found.name}: {done}, {url}")


def pull(
    run: RunName,
    url: Url,
    step: Annotated[
        int | None, typer.Argument(help="Which one.  [default: the newest that verifies]", show_default=False)
    ] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Bring a checkpoint back that was pushed, verify it, and publish it in the run, where a resume finds it."""
    import json

    from resilient_launch.checkpoint.store.objects import ObjectStore
    from resilient_launch.core.errors import RefusedError
    from resilient_launch.core.units import format_size

    looked = look(run, root)
    objects = ObjectStore.at(url)
    which = None
    if step is not None:
        which = next((ident for ident in objects.published() if ident.step == step), None)
        if which is None:
            steps = ", ".join(str(ident.step) for ident in objects.published()[:10])
            raise RefusedError(f"no checkpoint of step {step}", where=url, hint=f"one of the steps {steps or '(none)'}")
    pulled = objects.pull(looked.paths.checkpoints, which, run_id=looked.prospect.lineage.run_id)
    for name, why in pulled.damaged:
        typer.echo(f"note: {name} is damaged there: {why}", err=True)
    if as_json:
        value = {"schema": SCHEMA, "name": run, "checkpoint": pulled.manifest.name, "url": url}
        typer.echo(json.dumps({**value, "num_bytes": pulled.manifest.num_bytes}))
        return
    typer.echo(f"{pulled.manifest.name}: {format_size(pulled.manifest.num_bytes)} pulled and verified")
    typer.echo(f"next: rlaunch ckpt ls {run}", err=True)
