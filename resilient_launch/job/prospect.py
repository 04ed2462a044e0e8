"""What a start of the training now would resume from: the loader's view of a run, for those who look on."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass

from resilient_launch.checkpoint.store import Lineage
from resilient_launch.checkpoint.store.choose import PASSED_OVER
from resilient_launch.config import load
from resilient_launch.config.schema import CheckpointConfig, RestartConfig
from resilient_launch.core.errors import RlaunchError
from resilient_launch.core.events import read_events
from resilient_launch.core.ids import CheckpointId
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import read_attempts, read_ends
from resilient_launch.job.branches import left_behind
from resilient_launch.job.failures import checkpoint_names
from resilient_launch.job.lives import read_lives
from resilient_launch.policy.requeue import Limits, passed_over

_NEXT = 10**9


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """``lineage`` is that of the next start. ``is_idle``: no attempt is known to run.

    ``resumed_from`` is what the newest worker group went on from, whether or not it still runs.
    """

    lineage: Lineage
    is_idle: bool
    resumed_from: CheckpointId | None
    config: CheckpointConfig


def prospect(paths: RunPaths) -> Prospect:
    """The next start's lineage: a worker-group restart of the attempt that runs, else the next attempt's.

    Works for a run without a record of its own too, as a script that ran by itself leaves it.
    """
    attempts, ends = read_attempts(paths), read_ends(paths)
    running = attempts[-1] if attempts and attempts[-1].number not in ends else None
    config, restart = _config(paths)
    lineage = Lineage(
        run_id=run_id(paths),
        attempt=running.number if running else None,
        allowed=frozenset(running.checkpoints) if running else None,
        passed_over=not_to_use(paths, until=(_NEXT, 0), same_step=restart.same_step),
    )
    return Prospect(
        lineage=lineage, is_idle=running is None, resumed_from=_resumed_from(paths, len(attempts)), config=config
    )


def not_to_use(paths: RunPaths, *, until: tuple[int, int], same_step: int) -> dict[str, str]:
    """Sound checkpoints that a start of (attempt, worker-group restart) ``until`` must not go on from, with reasons.

    ``same_step`` is how often one may lead nowhere.
    """
    behind = left_behind(paths)
    names = [name for name in checkpoint_names(paths) if name not in behind]
    over = passed_over(read_lives(paths, until=until), names, limits=Limits(same_step=same_step))
    return {**dict.fromkeys(over, PASSED_OVER), **behind}


def run_id(paths: RunPaths) -> str:
    """The id that the run's checkpoints carry."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return str(json.loads(paths.run.read_bytes()).get("id", paths.name))
    return paths.name


def _config(paths: RunPaths) -> tuple[CheckpointConfig, RestartConfig]:
    if paths.config.exists():
        with contextlib.suppress(RlaunchError):
            launched = load(paths.config, frozen=True)
            return launched.checkpoint, launched.restart
    return CheckpointConfig(), RestartConfig()


def _resumed_from(paths: RunPaths, num_attempts: int) -> CheckpointId | None:
    for number in range(num_attempts - 1, -1, -1):
        files = sorted(paths.events.glob(f"a{number:04d}.r*.w00000.jsonl"))
        resumes = [event for event in read_events(files) if event["kind"] == "resume"]
        if resumes:
            last = max(resumes, key=lambda event: int(event.get("restart", 0)))
            return CheckpointId.parse(str(last.get("checkpoint")))
    return None
