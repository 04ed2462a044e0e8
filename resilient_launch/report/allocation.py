"""What Slurm's accounting says of each attempt's allocation, and how its clock meets the nodes'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resilient_launch.cluster.base import JobRow
from resilient_launch.cluster.hostlist import expand
from resilient_launch.core.errors import RlaunchError
from resilient_launch.job.attempt import Attempt
from resilient_launch.policy import goodput

CLOCK_SKEW_S = 5.0
"""How far a node's clock may be from the controller's for an attempt to be found in an allocation."""
TOLERANCE_S = 2.0
"""Slurm counts whole seconds at both ends."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """One run of a job id. Times are the controller's, seconds since the epoch; ``end_s`` is None while it runs."""

    start_s: float
    end_s: float | None
    queue_wait_s: float
    nodes: tuple[str, ...]

    @classmethod
    def of(cls, row: JobRow) -> Allocation:
        start = row.start_time or 0
        try:
            nodes = tuple(expand(row.nodes)) if row.nodes else ()
        except RlaunchError:
            nodes = ()
        wait = max(start - row.submit_time, 0) if row.submit_time is not None else 0
        return cls(start_s=start, end_s=row.end_time, queue_wait_s=wait, nodes=nodes)

    def around(self, begun_s: float, ended_s: float, now: float) -> tuple[float, float, str]:
        """The allocation's start and end on the clock of an attempt that lasted from ``begun_s`` to ``ended_s``.

        The clocks are moved against each other by the least that lets the attempt lie inside. The third value says in
        words what does not fit.
        """
        end_s = max(now, ended_s) if self.end_s is None else self.end_s
        shift_s, too_long_s = goodput.fitting(begun_s, ended_s, self.start_s, end_s)
        disagreement = ""
        if too_long_s > TOLERANCE_S:
            disagreement = f"its events span {ended_s - begun_s:.0f} s, Slurm's allocation {end_s - self.start_s:.0f} s"
        elif abs(shift_s) > TOLERANCE_S:
            disagreement = f"the nodes' clock is {abs(shift_s):.0f} s from Slurm's"
        return self.start_s - shift_s, end_s - shift_s, disagreement


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Every allocation of a run's jobs: those that an attempt claimed, by its number, and the rest."""

    by_attempt: Mapping[int, Allocation]
    unclaimed: Sequence[JobRow]


def partner(job_id: str, claimed_at: float, rows: Sequence[JobRow]) -> JobRow | None:
    """The run of the job during which an attempt was claimed (wall clock of its node); None where none fits."""
    fitting = [
        row
        for row in rows
        if row.job_id == job_id
        and row.start_time is not None
        and row.start_time <= claimed_at + CLOCK_SKEW_S
        and (row.end_time is None or row.end_time >= claimed_at - CLOCK_SKEW_S)
    ]
    return max(fitting, key=lambda each: each.start_time or 0, default=None)


def allocations(attempts: Sequence[Attempt], rows: Mapping[str, Sequence[JobRow]]) -> Spent:
    """Find the allocation of each attempt: the one of its job during which it was claimed."""
    found: dict[int, Allocation] = {}
    left = [row for of_job in rows.values() for row in of_job if row.start_time is not None]
    for attempt in attempts:
        row = partner(attempt.job_id, attempt.claimed_at, left)
        if row is not None:
            left.remove(row)
            found[attempt.number] = Allocation.of(row)
    unclaimed = [row for row in left if row.nodes and (row.end_time is None or row.end_time > (row.start_time or 0))]
    return Spent(by_attempt=found, unclaimed=unclaimed)
