"""Why an attempt ended, and what a notice is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why an attempt ended. The values are the words used in files, logs and on the command line."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    MAINTENANCE = "maintenance"
    NODE_FAILURE = "node_failure"
    HANG = "hang"
    OUT_OF_MEMORY = "out_of_memory"
    CRASH = "crash"
    CANCELLED = "cancelled"
    YIELDED = "yielded"


class RunState(StrEnum):
    """Where a run stands. Slurm owns queued, the node agents own starting to restarting, the rest are final."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    RESTARTING = "restarting"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """Whether no further attempt will start by itself."""
        return self in (RunState.FINISHED, RunState.FAILED, RunState.CANCELLED, RunState.STOPPED)


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Word that the end is near.

    ``deadline`` is wall-clock seconds since the epoch, or None where nothing bounds the save. ``source`` says what
    brought the word: a signal's name or the name of a request file.
    """

    cause: Cause
    deadline: float | None
    source: str
