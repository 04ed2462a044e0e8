"""What a fake cluster looks like. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
