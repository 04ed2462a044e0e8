"""When the wait that Slurm puts on a requeued job may be lifted."""

from __future__ import annotations

MARGIN_S = 5.0
"""Past KillWait: what it takes until a killed process is gone and its node has said so."""


def wait_left_s(*, now: float, not_before: float | None, pending_s: float, kill_wait_s: float) -> float:
    """Seconds that the job, seen pending for ``pending_s``, should still wait; 0 where the wait may be lifted.

    ``not_before`` is what the last attempt's end asked for (wall clock, 0 for nothing). It is None where that attempt
    ended without a word, as at a node failure: what it started may be alive on its node for KillWait, and a node that
    still runs a job refuses its next run: Slurm holds the job then, and drains the node ("Duplicate jobid"). No wait
    helps against a node that Slurm does not reach meanwhile, and that comes back later with the old run alive.
    """
    if not_before is None:
        return max(kill_wait_s + MARGIN_S - pending_s, 0.0)
    return max(not_before - now, 0.0)
