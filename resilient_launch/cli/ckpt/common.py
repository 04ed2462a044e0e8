"""What the commands about checkpoints share: finding a run's, and one of them by step or name."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilient_launch.cli.common import root_of

if TYPE_CHECKING:
    from resilient_launch.checkpoint.store import Found
    from resilient_launch.core.paths import RunPaths
    from resilient_launch.job.prospect import Prospect

SCHEMA = 1
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Which = Annotated[
    str | None,
    typer.Argument(
        metavar="[CHECKPOINT]",
        help="A step, a name as ls prints it, or newest.  [default: the one that a resume would use]",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A run's checkpoints, and how its next start stands to them."""

    paths: RunPaths
    prospect: Prospect
    found: list[Found]


def look(run: str, root: Path | None) -> Looked:
    """Survey a run. Raises RunNotFoundError where there is none; a script's own run directory will do."""
    from resilient_launch.checkpoint.store import survey
    from resilient_launch.core.paths import RunPaths
    from resilient_launch.job.prospect import prospect
    from resilient_launch.launch.records import read_run

    paths = RunPaths.of(run, root_of(root))
    if not paths.checkpoints.is_dir():
        read_run(paths)
    ahead = prospect(paths)
    return Looked(paths=paths, prospect=ahead, found=survey(paths.checkpoints, ahead.lineage))


def pick(looked: Looked, which: str | None) -> Found:
    """One checkpoint by step, by name, ``newest``, or None for what a resume would use. Raises RefusedError."""
    from resilient_launch.checkpoint.store import Standing
    from resilient_launch.core.errors import RefusedError

    published = [each for each in looked.found if each.standing not in (Standing.QUARANTINED, Standing.UNFINISHED)]
    if which is None:
        matching = [each for each in published if each.standing is Standing.CHOSEN]
    elif which == "newest":
        matching = published
    elif which.isdigit():
        matching = [each for each in published if each.id is not None and each.id.step == int(which)]
    else:
        matching = [each for each in looked.found if each.name == which]
    if not matching:
        what = "no checkpoint" if which in (None, "newest") else f"no checkpoint {which!r}"
        steps = ", ".join(str(each.id.step) for each in published[:10] if each.id)
        hint = f"one of the steps {steps}" if steps else f"rlaunch ckpt ls {looked.paths.name}"
        raise RefusedError(what, where=str(looked.paths.checkpoints), hint=hint)
    # Of several lives that saved one step, the newest: they are in that order.
    return matching[0]


def age(saved_at: float) -> str:
    from resilient_launch.report.notes import short_duration

    return f"{short_duration(max(time.time() - saved_at, 0.0))} ago"
