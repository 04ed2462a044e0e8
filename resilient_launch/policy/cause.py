"""Why an attempt ended, told from what its nodes reported, or from what was left when none did."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from resilient_launch.core.causes import Cause

_OF_STATE = {
    "PREEMPTED": Cause.PREEMPTED,
    "TIMEOUT": Cause.TIME_LIMIT,
    "DEADLINE": Cause.TIME_LIMIT,
    "NODE_FAIL": Cause.NODE_FAILURE,
    "BOOT_FAIL": Cause.NODE_FAILURE,
    "OUT_OF_MEMORY": Cause.OUT_OF_MEMORY,
    "CANCELLED": Cause.CANCELLED,
    "FAILED": Cause.CRASH,
}


_BLAMES = (Cause.NODE_FAILURE, Cause.OUT_OF_MEMORY, Cause.HANG)
"""What a node's agent may know of its workers' end, the cause of the others' ends first."""


def of_reports(
    *, finished: Sequence[bool], num_missing: int, notice: Cause | None, blamed: Collection[Cause] = ()
) -> Cause:
    """The cause of an attempt, from ``finished`` of every node that reported and ``num_missing`` that did not.

    Work that is done is done, whatever was announced meanwhile; after a notice, how the workers ended no longer
    matters; a node that says nothing is a node that failed; then counts what the agents know (``blamed``); what is left
    is a crash.
    """
    if finished and all(finished) and not num_missing:
        return Cause.FINISHED
    if notice is not None:
        return notice
    if num_missing:
        return Cause.NODE_FAILURE
    return next((cause for cause in _BLAMES if cause in blamed), Cause.CRASH)


def of_silence(*, state: str | None, notice: Cause | None) -> Cause:
    """The cause of an attempt that ended without a word, from Slurm's word for that run of the job, if there is one.

    A job that comes back although its agents neither requeued it nor heard a notice lost its first node.
    """
    if notice is not None:
        return notice
    return _OF_STATE.get((state or "").split(" ")[0], Cause.NODE_FAILURE)
