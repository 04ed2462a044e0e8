"""Whether an interrupted run came out as the uninterrupted one would have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from resilient_launch.checkpoint.digest import state_digest
from resilient_launch.checkpoint.store import published
from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core.errors import CheckpointError, RlaunchError
from resilient_launch.core.paths import RunPaths
from resilient_launch.launch import connect, make_plan, submit
from resilient_launch.report.state import RunStatus


def final_digest(paths: RunPaths) -> str:
    """The digest of the newest checkpoint's state. Raises CheckpointError when there is none."""
    checkpoint = next(iter(published(paths.checkpoints)), None)
    if checkpoint is None:
        raise CheckpointError(f"run {paths.name!r}", where=str(paths.checkpoints), why="has no checkpoint")
    return state_digest(paths.checkpoints / str(checkpoint))


def run_reference(config: LaunchConfig, root: Path, *, follow: Callable[[str], RunStatus]) -> str:
    """Run ``config`` without its faults, as a run of its own, and return the digest of its final state.

    Raises RlaunchError when that run does not finish.
    """
    name = f"{config.name}-reference"
    plan = make_plan(replace(config, name=name, faults=()), root)
    connection = connect(config.cluster, root, start=config.fake if config.cluster == "fake" else None)
    submit(plan, connection)
    status = follow(name)
    if status.state != "finished":
        raise RlaunchError(f"the uninterrupted run {name!r}", why=f"is {status.state}: {status.reason}")
    return final_digest(plan.paths)
