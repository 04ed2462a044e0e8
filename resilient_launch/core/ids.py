"""Names of runs, attempts and checkpoints, and nothing else about them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from resilient_launch.core.errors import UsageError

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CHECKPOINT_NAME = re.compile(r"step-(\d{8,})\.a(\d{4,})\.r(\d+)")


def check_run_name(name: str, *, where: str = "") -> str:
    """Return ``name`` if it can be a directory, a Slurm job name and a shell word alike; raise UsageError otherwise."""
    if not _RUN_NAME.fullmatch(name):
        raise UsageError(
            f"run name {name!r}",
            where=where,
            why="must be 1 to 100 letters, digits, dots, dashes and underscores, and start with a letter or digit",
            hint=f"name: {re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-._')[:100] or 'my-run'}",
        )
    return name


@dataclass(frozen=True, order=True)
class CheckpointId:
    """One checkpoint of a run. Ordered by age in its lineage: attempt, worker-group restart, step."""

    attempt: int
    restart: int
    step: int

    def __str__(self) -> str:
        return f"step-{self.step:08d}.a{self.attempt:04d}.r{self.restart}"

    @classmethod
    def parse(cls, name: str) -> CheckpointId | None:
        """The checkpoint that a directory name stands for; None for any other name."""
        match = _CHECKPOINT_NAME.fullmatch(name)
        if match is None:
            return None
        step, attempt, restart = (int(group) for group in match.groups())
        found = cls(attempt=attempt, restart=restart, step=step)
        return found if str(found) == name else None
