"""``rlaunch resume``."""

from __future__ import annotations

from typing import Annotated

import typer

from resilient_launch.cli.common import Root, RunName, find_run
from resilient_launch.core.errors import RefusedError


def resume(
    run: RunName,
    origin: Annotated[
        str, typer.Option("--from", metavar="STEP", help="The checkpoint's step, or its name as ckpt ls prints it.")
    ],
    root: Root = None,
    no_start: Annotated[
        bool,
        typer.Option(
            "--no-start", help="Only note it: rlaunch submit CONFIG then goes on from there, with what was changed."
        ),
    ] = False,
) -> None:
    """Let a run go on from an older checkpoint, as a new lineage: when the loss diverged, say.

    Checkpoints that are no ancestors of it stay where they are and are not used any more, until retention removes
    them. The run must not be running; one that waits in the queue, has stopped or is finished goes on.
    """
    from resilient_launch.checkpoint.store import Standing, verify
    from resilient_launch.cli.ckpt.common import look, pick
    from resilient_launch.job.attempt import read_attempts
    from resilient_launch.job.branches import branched
    from resilient_launch.launch.comeback import go_on, newest_job
    from resilient_launch.launch.stopping import unfinish

    found = find_run(run, root)
    looked = look(run, root)
    chosen = pick(looked, origin)
    if chosen.id is None or chosen.standing not in (Standing.CHOSEN, Standing.OLDER, Standing.PASSED_OVER):
        raise RefusedError(f"checkpoint {chosen.name}", why=f"is {chosen.standing}: {chosen.why}")
    (verdict,) = verify([chosen.path], run_id=looked.prospect.lineage.run_id)
    if not verdict.is_intact:
        raise RefusedError(
            f"checkpoint {chosen.name}",
            why=f"is {verdict.integrity}: {verdict.problems[0].why}",
            hint=f"rlaunch ckpt verify {run}, to find another",
        )
    view = found.connection.scheduler.show(newest_job(found.paths))
    if view is not None and not view.is_over and view.state != "PENDING":
        why = f"is not waiting: its job is {view.state.lower()}"
        raise RefusedError(f"run {run!r}", why=why, hint=f"rlaunch stop {run}, then again")
    next_attempt = max((each.number for each in read_attempts(found.paths)), default=-1) + 1
    with branched(found.paths, chosen.id, next_attempt=next_attempt) as branch:
        if no_start:
            unfinish(found.paths, f"told to go on from {chosen.name}")
        done = "not started" if no_start else go_on(found.paths, found.connection)
    typer.echo(f"{run}: goes on from step {branch.step}, {len(branch.left_behind)} checkpoints left behind; {done}")
    typer.echo(f"next: rlaunch {'submit CONFIG' if no_start else f'wait {run}'}", err=True)
