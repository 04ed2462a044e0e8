"""All that one node agent watches: its node's health, the worker group's progress, and the memory it may use."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core.causes import Cause
from resilient_launch.job import health
from resilient_launch.job.context import Allocation
from resilient_launch.job.memory import memory_cgroup, read_counters
from resilient_launch.job.page import Page, Phase
from resilient_launch.job.watchdog import Callbacks, Watchdog, Watched
from resilient_launch.policy import hang, oom

if TYPE_CHECKING:
    from torch.distributed import Store

log = logging.getLogger("rlaunch.agent")


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Why a worker group ended, where the agent knows better than its exit codes say. ``rank`` is the one to blame,
    None where that is the first that failed; ``suspects`` are nodes that the next attempt should stay away from."""

    cause: Cause
    why: str
    rank: int | None = None
    suspects: tuple[str, ...] = ()


class NodeWatch:
    """Lives as long as its node agent; ``diagnosis`` is about the newest worker group, None for a plain crash.

    Its methods are for the agent's main thread. ``tell`` may be called from any thread, with a message for that one:
    ("event", (kind, fields)), ("hang", (restart, Blame)) or ("lost", why).
    """

    def __init__(
        self, config: LaunchConfig, allocation: Allocation, *, log_dir: Path, page_dir: Path, tell: Callable[..., None]
    ) -> None:
        self._config, self._allocation, self._tell = config, allocation, tell
        self._log_dir, self._page_dir = log_dir, page_dir
        self._gaps: dict[Phase, float] = {}
        self._watchdog: Watchdog | None = None
        self._cgroup = memory_cgroup()
        self._counters = read_counters(self._cgroup)
        self._nccl_pipes = str(page_dir / "nccl-")
        self._nccl_traces = str(log_dir / f"{allocation.node}.nccl-trace.")
        self.diagnosis: Diagnosis | None = None

    def set_environment(self) -> None:
        """Give workers the settings without which a collective may wait for ever, where the user set none."""
        ours = hang.collective_settings(
            os.environ,
            ceiling_s=self._config.hang.ceiling_s,
            trace_prefix=self._nccl_traces,
            pipe_prefix=self._nccl_pipes,
        )
        os.environ.update(ours)
        log.info("for the workers' collectives: %s", " ".join(f"{name}={value}" for name, value in ours.items()))

    def check_node(self, connect: Callable[[], Store], run_dir: Path) -> str:
        """Check this node before the first worker group; what is wrong with it, empty when nothing is."""
        if not self._config.health.enabled:
            return ""
        allocation = self._allocation
        if allocation.is_first:
            answering = (connect(), allocation.num_nodes)
            threading.Thread(target=health.answer_clocks, args=answering, name="rlaunch-clock", daemon=True).start()
        who = f"{allocation.job_id}-{allocation.slurm_restart_count}-{allocation.node_index}"
        found = health.problems(
            health.checks_of(self._config, run_dir, who=who, store=connect(), is_first=allocation.is_first)
        )
        if not found:
            return ""
        why = f"node {allocation.node} is not fit: {'; '.join(found)}"
        self.diagnosis = Diagnosis(cause=Cause.NODE_FAILURE, why=why, suspects=(allocation.node,))
        return why

    def check_links(self, store: Store, first_address: str) -> str:
        """Wait for all nodes, and check that they reach each other; what is wrong, empty when nothing is. Blocks."""
        if not self._config.health.enabled or self._allocation.num_nodes == 1:
            return ""
        return health.links(
            store,
            node_index=self._allocation.node_index,
            num_nodes=self._allocation.num_nodes,
            first_address=first_address,
        )

    def blame_links(self, why: str) -> None:
        """The nodes do not reach each other; which of them is at fault is not known."""
        self.diagnosis = Diagnosis(cause=Cause.NODE_FAILURE, why=f"node {self._allocation.node}: {why}")

    def begin_group(self, store: Store, restart: int, ranks: Sequence[int], pages: Sequence[Page]) -> None:
        """Watch the worker group that begins. ``store`` is a connection of its own into the group's key space."""
        self.end_group()
        self.diagnosis = None
        self._counters = read_counters(self._cgroup)
        limits = self._config.hang
        self._watchdog = Watchdog(
            store,
            Watched(
                node=self._allocation.node,
                node_index=self._allocation.node_index,
                num_nodes=self._allocation.num_nodes,
                ranks=ranks,
                pages=pages,
                page_files=[self._page_dir / f"r{restart}.{local}" for local in range(len(ranks))],
                log_dir=self._log_dir,
                nccl_pipes=self._nccl_pipes,
                nccl_traces=self._nccl_traces,
            ),
            limits=hang.Limits(floor_s=limits.floor_s, ceiling_s=limits.ceiling_s) if limits.enabled else None,
            gaps=self._gaps,
            callbacks=Callbacks(
                emit=lambda kind, fields: self._tell("event", (kind, fields)),
                on_hang=lambda blame: self._tell("hang", (restart, blame)),
                on_lost_nodes=lambda nodes: self._tell(
                    "lost", f"no answer from {', '.join(self._allocation.nodes[node] for node in nodes)}"
                ),
            ),
        )
        self._watchdog.start()

    def note_started(self, pids: Mapping[int, int]) -> None:
        """The processes of the group that began, by rank. Safe from any thread."""
        self._tell("event", ("group_begin", {"pids": dict(pids)}))
        if self._watchdog is not None:
            self._watchdog.note_started(pids)

    def end_group(self) -> None:
        """Stop watching."""
        if self._watchdog is not None:
            self._watchdog.stop()

    def blame_hang(self, blame: hang.Blame) -> None:
        """The newest worker group is being ended for a hang."""
        log.error("hang: ending the worker group: %s", blame.why)
        why = f"no progress: {blame.why}\nstacks of every rank: {self._log_dir}/*.stack.txt"
        self.diagnosis = Diagnosis(cause=Cause.HANG, why=why, rank=blame.rank)

    def explain_exits(self, exits: Mapping[int, int]) -> dict[str, Any]:
        """The newest worker group ended with ``exits``; further fields for its event."""
        self.end_group()
        if self.diagnosis is None and oom.is_out_of_memory(self._counters, read_counters(self._cgroup), exits):
            where = f" of {self._cgroup[0]}" if self._cgroup else ""
            why = f"the kernel killed a process of node {self._allocation.node} at the memory limit{where}"
            self.diagnosis = Diagnosis(cause=Cause.OUT_OF_MEMORY, why=why)
        return {} if self.diagnosis is None else {"cause": self.diagnosis.cause}
