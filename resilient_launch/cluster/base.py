"""What the rest of the program asks of a scheduler, and the values it answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

FINAL_STATES = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
"""Slurm's words for a job that will not run again by itself."""


@dataclass(frozen=True, kw_only=True)
class JobView:
    """What Slurm says about a job now. Times are seconds since the epoch; None where Slurm has no value.

    ``state`` and ``reason`` are Slurm's own words, but a job that waits is PENDING, whatever Slurm calls it when it is
    held, and one that runs RUNNING, also in the moment in which Slurm signals it.
    ``start_time`` and ``end_time`` of a pending job are estimates;
    ``end_time`` of a running one is when Slurm will end it, which a preemption pulls in to the end of its grace.
    ``eligible_time`` is when a requeued job may start again. ``time_limit_s`` is None for an unlimited job.
    ``job_id`` of an array's task is ``<array>_<task>``. ``nodes`` is a hostlist, empty before the job has nodes.
    Only ``show`` fills ``restart_count``, ``preempt_time``, ``eligible_time``, ``exit_code``, ``exit_signal``,
    ``may_requeue`` and ``comment``.
    """

    job_id: str
    state: str
    reason: str = ""
    name: str = ""
    user: str = ""
    partition: str = ""
    submit_time: int | None = None
    eligible_time: int | None = None
    start_time: int | None = None
    end_time: int | None = None
    preempt_time: int | None = None
    time_limit_s: int | None = None
    num_nodes: int = 0
    nodes: str = ""
    batch_host: str = ""
    restart_count: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    may_requeue: bool | None = None
    comment: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the job will not run again by itself."""
        return self.state in FINAL_STATES


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """One run of a job id in Slurm's accounting. Ids are reused by some controllers: compare ``submit_time``.

    ``state`` is the first word of Slurm's (CANCELLED for "CANCELLED by 1000"); ``derived_exit_code`` is the highest
    exit code of the run's steps.
    """

    job_id: str
    state: str
    submit_time: int | None
    start_time: int | None
    end_time: int | None
    exit_code: int | None
    exit_signal: int | None
    derived_exit_code: int | None
    nodes: str


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """Nodes that are kept free, or for certain users, from ``start_time`` to ``end_time``. ``nodes`` is a hostlist."""

    name: str
    start_time: int
    end_time: int
    nodes: str
    flags: tuple[str, ...] = ()

    @property
    def is_maintenance(self) -> bool:
        """Whether nodes go down for work on them."""
        return "MAINT" in self.flags


class RequeueOutcome(StrEnum):
    """How a requeue went. Both are success: the job waits in the queue again."""

    REQUEUED = "requeued"
    ALREADY = "already"


class Scheduler(Protocol):
    """The few things asked of a scheduler.

    Every method may raise UnreachableError (no commands, no answer), and RefusedError with the scheduler's own words.
    A job id that cannot be one raises UsageError.
    """

    def show(self, job_id: str) -> JobView | None:
        """The job as it stands now; None when the scheduler does not know the id, or no longer does."""
        ...

    def queue(self, job_ids: Sequence[str]) -> dict[str, JobView]:
        """Those of the jobs that the scheduler knows, by id, for the price of one question."""
        ...

    def history(self, job_id: str) -> list[JobRow]:
        """One row per run of the job, oldest first; empty where there is no accounting."""
        ...

    def requeue(self, job_id: str, *, hold: bool = False) -> RequeueOutcome:
        """Put the job back into the queue under the same id, held there if ``hold``. A bare array id would requeue
        every task of the array."""
        ...

    def release(self, job_id: str) -> None:
        """Lift the hold of a pending job."""
        ...

    def cancel(self, job_id: str) -> None:
        """End the job. One that is over, or unknown, is no error."""
        ...

    def start_now(self, job_id: str) -> None:
        """Lift the wait that follows a requeue: the job may start as soon as that is safe and it has nodes."""
        ...

    def start_at(self, job_id: str, when: float) -> None:
        """Let a pending job start no earlier than ``when``, in seconds since the epoch."""
        ...

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        """Keep a pending job off ``nodes``, and off no others."""
        ...

    def set_comment(self, job_id: str, comment: str) -> None:
        """Replace the job's comment."""
        ...

    def reservations(self) -> list[Reservation]:
        """Every reservation there is."""
        ...

    def usable_nodes(self, partition: str) -> list[str]:
        """Names of the partition's nodes (of all, for "") that are neither down, drained nor reserved."""
        ...

    def nodes(self, partition: str = "") -> dict[str, str]:
        """Every node of the partition (of all, for ""), and Slurm's short word for its state."""
        ...

    def partition_setting(self, partition: str, name: str) -> str | None:
        """The value of one of a partition's settings, such as GraceTime; None where there is none."""
        ...

    def node_address(self, node: str) -> str:
        """An address that reaches the node from another one: a name need not resolve."""
        ...

    def version(self) -> str:
        """The scheduler's version, such as 22.05.8."""
        ...
