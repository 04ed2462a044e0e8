"""What a fake cluster looks like. Times are seconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class PartitionSpec:
    """One partition over all nodes. A partition of a higher tier preempts jobs of a lower one that may be requeued."""

    name: str
    tier: int = 1
    preempt_mode: Literal["off", "requeue", "cancel"] = "off"
    grace_s: int = 0


DEFAULT_PARTITIONS = (
    PartitionSpec(name="low", tier=1, preempt_mode="requeue", grace_s=30),
    PartitionSpec(name="high", tier=10),
)


@dataclass(frozen=True, kw_only=True)
class FakeSpec:
    """A cluster of ``num_nodes`` equal nodes named n1, n2, …; the first partition is the default one.

    ``signals`` is who gets a step's signals: every process under the task (``tree``, proctrack/linuxproc) or the task
    alone (``task``, proctrack/cgroup). ``like`` is the Slurm version whose behaviour is followed where versions differ.
    ``min_job_age_s`` is how long a finished job stays known to squeue and scontrol. ``max_batch_requeue`` is how many
    requeues that count (exits inside the grace window, on 24.11) a job may have before it is held.
    """

    num_nodes: int = 4
    cpus: int = 4
    gpus: int = 0
    memory_mb: int = 8192
    partitions: tuple[PartitionSpec, ...] = DEFAULT_PARTITIONS
    kill_wait_s: int = 5
    requeue_delay_s: float = 121.0
    like: Literal["22.05", "24.11"] = "22.05"
    signals: Literal["tree", "task"] = "tree"
    send_user_signal: bool = False
    accounting: bool = True
    name: str = "fake"
    min_job_age_s: float = 300.0
    max_batch_requeue: int = 5

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, self.num_nodes + 1))

    @property
    def slurm_version(self) -> str:
        """The full version number that the commands report."""
        return {"22.05": "22.05.8", "24.11": "24.11.5"}[self.like]

    def partition(self, name: str) -> PartitionSpec | None:
        return next((partition for partition in self.partitions if partition.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form; ``from_dict`` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> FakeSpec:
        partitions = tuple(PartitionSpec(**partition) for partition in values["partitions"])
        return cls(**{**values, "partitions": partitions})
