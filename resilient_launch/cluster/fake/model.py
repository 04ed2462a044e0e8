"""What the controller knows of jobs, steps and nodes."""

from __future__ import annotations

import math
import os
import re
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class JobState(StrEnum):
    """Slurm's job states, spelt as Slurm does."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    REQUEUED = "REQUEUED"

    @property
    def compact(self) -> str:
        return _COMPACT[self]

    @property
    def is_final(self) -> bool:
        return self not in (JobState.PENDING, JobState.RUNNING)


_COMPACT = {
    JobState.PENDING: "PD",
    JobState.RUNNING: "R",
    JobState.COMPLETED: "CD",
    JobState.CANCELLED: "CA",
    JobState.FAILED: "F",
    JobState.TIMEOUT: "TO",
    JobState.NODE_FAIL: "NF",
    JobState.PREEMPTED: "PR",
    JobState.REQUEUED: "RQ",
}


@dataclass(frozen=True, kw_only=True)
class WarnSignal:
    """``--signal``: which signal, how many seconds before the limit, and whether the batch shell alone gets it."""

    signum: int
    lead_s: int = 60
    batch: bool = False


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What was submitted. ``time_limit_s`` None is unlimited; ``gpus`` are per node; memory is MiB per node."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    cwd: str = "/"
    umask: int = 0o022
    uid: int = 0
    gid: int = 0
    account: str = ""
    partition: str = ""
    qos: str = "normal"
    min_nodes: int = 1
    max_nodes: int = 1
    nodes_given: bool = False
    num_tasks: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int = 1
    cpus_per_task_given: bool = False
    memory_mb: int = 0
    memory_per_cpu_mb: int = 0
    gpus: int = 0
    exclusive: bool = False
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    constraint: str = ""
    comment: str = ""
    requeue: bool = True
    no_kill: bool = False
    kill_on_invalid_dependency: bool = False
    time_limit_s: int | None = None
    signal: WarnSignal | None = None
    append: bool = False
    append_given: bool = False
    export: str = ""
    stdin: str = "/dev/null"
    stdout: str = ""
    stderr: str = ""
    hold: bool = False
    begin_time: float = 0.0
    priority: int | None = None
    command: str = "(null)"

    def tasks_on(self, num_nodes: int) -> tuple[int, ...]:
        """How many tasks each of ``num_nodes`` nodes gets, in node order."""
        if self.tasks_per_node is not None and self.num_tasks is None:
            return (self.tasks_per_node,) * num_nodes
        total = max(self.num_tasks or num_nodes, num_nodes)
        share, rest = divmod(total, num_nodes)
        return tuple(share + (index < rest) for index in range(num_nodes))


@dataclass(frozen=True, kw_only=True)
class ArrayTask:
    """A job's place in its array: its number, among ``count`` from ``low`` to ``high``; ``limit`` run at once."""

    array_id: int
    index: int
    count: int
    low: int
    high: int
    step: int = 1
    limit: int = 0


MAX_ARRAY_SIZE = 1001
"""Slurm's MaxArraySize: task numbers stay below it."""
_PIECE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


def task_numbers(text: str) -> list[int]:
    """Numbers of ``0-3,7``, ``1-9:4`` or ``[1-2]``, each once, in order. Raises ValueError."""
    found: set[int] = set()
    for piece in text.strip("[]").split(","):
        match = _PIECE.fullmatch(piece)
        if match is None:
            raise ValueError(f"bad array {text!r}")
        low, high, step = (int(word) if word else None for word in match.groups())
        assert low is not None
        high = low if high is None else high
        if step == 0 or high < low or high >= MAX_ARRAY_SIZE:
            raise ValueError(f"bad array {text!r}")
        found.update(range(low, high + 1, step or 1))
    return sorted(found)


@dataclass(kw_only=True, slots=True)
class StepNode:
    """One step's share on one node. ``statuses`` are wait statuses by local task number."""

    node: str
    num_tasks: int
    first_rank: int
    launched: bool = False
    done: bool = False
    lost: bool = False
    statuses: dict[int, int] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class Step:
    """One step of one run of a job: the batch script, or one srun."""

    name: str
    command: str
    nodes: list[StepNode]
    start: float
    end: float | None = None
    kill_on_bad_exit: bool = False
    killed: bool = False

    @property
    def is_batch(self) -> bool:
        return self.name == "batch"

    @property
    def status(self) -> int:
        """The wait status of the worst task: the highest exit code, or else the last signal."""
        statuses = [status for node in self.nodes for status in node.statuses.values()]
        return max(statuses, key=lambda status: (exit_code(status), status), default=0)

    @property
    def state(self) -> str:
        if self.end is None:
            return "RUNNING"
        if self.was_lost or os.WIFSIGNALED(self.status):
            return "CANCELLED"
        return "FAILED" if self.status else "COMPLETED"

    @property
    def was_lost(self) -> bool:
        """Whether a node failed under it, so that nobody knows how it ended there."""
        return any(node.lost for node in self.nodes)


@dataclass(kw_only=True, slots=True)
class Job:
    """A job and the run it is in. Times are seconds since the epoch, 0 for none."""

    job_id: int
    request: JobRequest
    submit: float
    eligible: float
    array: ArrayTask | None = None
    dependency: str = ""
    """What it still waits for, and how each part stands."""
    state: JobState = JobState.PENDING
    completing: bool = False
    reason: str = "None"
    description: str = ""
    priority: int = 0
    held: bool = False
    restarts: int = 0
    run: int = 0
    """Counts the runs; unlike ``restarts``, it changes only once the run before has ended on every node."""
    begin: float = 0.0
    batch_requeues: int = 0
    limit_reached: bool = False
    """It came back more often by itself than it may, and waits under another name until it runs again."""
    time_limit_s: int | None = None
    comment: str = ""
    start: float = 0.0
    end: float = 0.0
    preempt: float = 0.0
    kill_at: float = 0.0
    warn_sent: bool = False
    requeue_owed: bool = False
    """24.11 alone: a grace time began, and the next end of a batch script by itself, if only in the run that follows,
    brings a requeue."""
    cancelled_by: int | None = None
    exit_status: int = 0
    nodes: list[str] = field(default_factory=list)
    gpus: dict[str, list[int]] = field(default_factory=dict)
    cpus: dict[str, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    next_step: int = 0
    run_state: JobState | None = None
    """How accounting will name the run that is ending, while the job itself may be PENDING again."""
    run_end: float = 0.0
    last_evaluated: float = 0.0

    @property
    def shown_id(self) -> str:
        """What Slurm's commands call it: a task of an array goes by the array's id and its own number."""
        return str(self.job_id) if self.array is None else f"{self.array.array_id}_{self.array.index}"

    def is_meant_by(self, text: str) -> bool:
        """Whether an id names it: its own, its array's, ``7_3`` or ``7_[1-3]``."""
        base, _, index = text.partition("_")
        if not base.isdecimal():
            return False
        if not index:
            return int(base) in (self.job_id, self.array.array_id if self.array else self.job_id)
        if self.array is None or self.array.array_id != int(base):
            return False
        try:
            return self.array.index in task_numbers(index)
        except ValueError:
            return False

    @property
    def has_never_run(self) -> bool:
        return self.is_pending and not self.restarts and not self.start

    @property
    def run_key(self) -> str:
        return f"{self.job_id}.{self.run}"

    @property
    def batch_host(self) -> str:
        return self.nodes[0] if self.nodes else ""

    @property
    def is_running(self) -> bool:
        return self.state is JobState.RUNNING

    @property
    def is_pending(self) -> bool:
        """Waiting in the queue, or on its way back to it."""
        return self.state is JobState.PENDING

    @property
    def is_over(self) -> bool:
        """Nothing of it will run again by itself."""
        return self.state.is_final and not self.completing

    @property
    def shown_state(self) -> str:
        return "COMPLETING" if self.completing else "REQUEUE_HOLD" if self._is_over_limit else self.state.value

    @property
    def shown_compact(self) -> str:
        return "CG" if self.completing else "RH" if self._is_over_limit else self.state.compact

    @property
    def _is_over_limit(self) -> bool:
        return self.limit_reached and self.is_pending

    @property
    def state_names(self) -> set[str]:
        """The states by which squeue finds it."""
        return {self.shown_state} if self._is_over_limit else {self.shown_state, self.state.value}

    @property
    def derived_status(self) -> int:
        """DerivedExitCode: the highest wait status of its srun steps, so that any exit code beats any signal."""
        return self.derived_status_at(math.inf)

    def derived_status_at(self, moment: float) -> int:
        """The same, of the steps that have ended by then."""
        ended = [step for step in self.steps if not step.is_batch and (step.end or 0.0) <= moment]
        return max((step.status for step in ended), default=0)

    def step(self, name: str) -> Step | None:
        return next((step for step in self.steps if step.name == name), None)

    def active_steps(self) -> list[Step]:
        return [step for step in self.steps if step.end is None]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Job:
        request = values["request"]
        lists = ("arguments", "environment", "nodelist", "exclude")
        request.update({name: tuple(request[name]) for name in lists})
        request["signal"] = WarnSignal(**request["signal"]) if request["signal"] else None
        steps = [Step(**{**step, "nodes": [_step_node(node) for node in step["nodes"]]}) for step in values["steps"]]
        run_state = JobState(values["run_state"]) if values["run_state"] else None
        array = ArrayTask(**values["array"]) if values["array"] else None
        replaced = {
            "request": JobRequest(**request),
            "steps": steps,
            "state": JobState(values["state"]),
            "array": array,
        }
        return cls(**{**values, **replaced, "run_state": run_state})


def _step_node(values: dict[str, Any]) -> StepNode:
    statuses = {int(index): status for index, status in values["statuses"].items()}
    return StepNode(**{**values, "statuses": statuses})


@dataclass(kw_only=True, slots=True)
class Node:
    """One node. ``isolated``: its network is gone, what ran there still runs."""

    name: str
    down: bool = False
    drained: bool = False
    isolated: bool = False
    reason: str = ""
    since: float = 0.0

    @property
    def is_usable(self) -> bool:
        return not (self.down or self.drained)


def exit_code(status: int) -> int:
    """What a shell would report for a wait status: the exit code, or 128 plus the signal."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def code_pair(status: int) -> str:
    """``exit:signal``, as Slurm writes it."""
    return f"0:{os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"{status >> 8}:0"
