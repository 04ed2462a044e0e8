"""torch's elastic agent, with gang-wide restart numbers, a page for each rank, and ends that do not wait.

Workers inherit a mask that blocks TERM, so torch's own way of ending a group (TERM, 30 s, KILL) would cost its whole
wait at every crash; here a group is ended with KILL, at once, dataloader processes included.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed import Store
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs

from resilient_launch.job import processes
from resilient_launch.job.nursery import Forked, Nursery
from resilient_launch.job.program import Program
from resilient_launch.job.rendezvous import GangRendezvous

MONITOR_INTERVAL_S = 0.1
OTHERS_TIMEOUT_S = 2.0
_PLACEHOLDER = "/bin/true"


@dataclass(frozen=True, kw_only=True)
class GroupSpec:
    """What a node runs: ``program`` once for each of ``num_workers`` workers, in a gang of ``num_nodes`` nodes.

    ``store_address`` is where this node reaches the gang's first node, ``local_address`` its own address. ``log_dir``
    gets what workers print, and their error files.
    """

    program: Program
    num_workers: int
    num_nodes: int
    node_index: int
    max_restarts: int
    run_id: str
    local_address: str
    store_address: str
    log_dir: Path
    node: str
    join_timeout_s: float


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """How the last worker group of this node ended. ``exits`` is global rank -> exit code (negative: signal number)."""

    ok: bool
    exits: Mapping[int, int] = field(default_factory=dict)
    first_rank: int | None = None
    error: str = ""


class _Logs(LogsSpecs):
    """Leaves output to whoever starts a worker; names an error file for each rank."""

    def __init__(self, error_dir: Path, node: str) -> None:
        super().__init__(log_dir=str(error_dir))
        self._error_dir, self._node = error_dir, node

    @property
    def root_log_dir(self) -> str:
        return str(self._error_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        files = {
            local: str(self._error_dir / f"{self._node}.{env['RANK']}.r{env['TORCHELASTIC_RESTART_COUNT']}.error.json")
            for local, env in envs.items()
        }
        for local, env in envs.items():
            env["TORCHELASTIC_ERROR_FILE"] = files[local]
        streams = dict.fromkeys(envs, "")
        return LogsDest(stdouts=streams, stderrs=dict(streams), error_files=files)


class _NoMoreGroups(Exception):  # noqa: N818
    """Another worker group would start now, and must not."""


class GangAgent(LocalElasticAgent):
    """The elastic agent of one node.

    ``on_group`` is called with (restart number, global ranks) before a worker group starts and may raise to refuse it;
    ``on_started`` with {rank: process id} when it has;
    ``on_exit`` is called with (restart number, {rank: exit code}) when one ended, and may call ``end_with_this_group``;
    ``may_wait`` says whether the other ranks may be waited for when one has failed: there is no step to lose.
    """

    def __init__(
        self,
        spec: GroupSpec,
        store: Store,
        *,
        nursery: Nursery | None,
        on_group: Callable[[int, Sequence[int]], None],
        on_started: Callable[[Mapping[int, int]], None],
        on_exit: Callable[[int, Mapping[int, int]], None],
        may_wait: Callable[[], bool],
    ) -> None:
        self._rendezvous_of_gang = GangRendezvous(
            store,
            node_index=spec.node_index,
            num_nodes=spec.num_nodes,
            address=spec.store_address,
            run_id=spec.run_id,
            timeout_s=spec.join_timeout_s,
        )
        worker_spec = WorkerSpec(
            role="worker",
            local_world_size=spec.num_workers,
            # torch insists on starting something itself; the workers take its place.
            entrypoint=_PLACEHOLDER,
            rdzv_handler=self._rendezvous_of_gang,
            max_restarts=spec.max_restarts,
            monitor_interval=MONITOR_INTERVAL_S,
            local_addr=spec.local_address,
        )
        super().__init__(worker_spec, _Logs(spec.log_dir, spec.node), start_method="spawn")
        self._spec, self._nursery = spec, nursery
        self._on_group, self._on_started = on_group, on_started
        self._on_exit, self._may_wait = on_exit, may_wait
        self._restart = 0
        self._killed = -1
        self._first_exits: dict[int, int] = {}
        self._no_more_restarts = False
        self._done: RunResult | None = None

    @property
    def restart(self) -> int:
        """Number of the newest worker group, the same on every node."""
        return self._restart

    def end_with_this_group(self) -> None:
        """Start no further worker group, whatever happens to this one."""
        self._no_more_restarts = True

    def kill_workers(self, *, of_restart: int | None = None) -> None:
        """End the worker group now, or only if it is still that of ``of_restart``. Safe from any thread."""
        # In this order: a newer group takes its number before it has processes, and looks here once it has them.
        self._killed = max(self._killed, self._restart if of_restart is None else of_restart)
        context = self._pcontext
        if context is not None and of_restart in (None, self._restart):
            processes.kill(list(context.pids().values()))

    def run_group(self) -> GroupResult:
        """Run worker groups until one succeeds or no restart is left. Blocks; raises what the rendezvous raises."""
        # It would call every failed worker by the placeholder's name; the report names its error.
        logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
        try:
            ok = not self.run("worker").is_failed()
        except _NoMoreGroups:
            ok = False
        exits = dict(self._first_exits)
        return GroupResult(ok=ok, exits=exits, first_rank=next(iter(exits), None))

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        # torch counts restarts on each node by itself, and only those of its own workers: the rounds are the gang's.
        self._restart = self._rendezvous_of_gang.round - 1
        limit = worker_group.spec.max_restarts
        self._remaining_restarts = max(limit - self._restart, 0)
        self._first_exits, self._done = {}, None
        self._on_group(self._restart, [worker.global_rank for worker in worker_group.workers])
        super()._start_workers(worker_group)
        context: Any = self._pcontext
        for local, handler in context.subprocess_handlers.items():
            placeholder, handler.proc = handler.proc, self._start_worker(context.envs[local])
            # Only now: until it is waited for, no other process can have its number.
            placeholder.wait()
        pids: dict[int, Any] = context.pids()
        self._on_started({worker.global_rank: pids[worker.local_rank] for worker in worker_group.workers})
        if self._killed >= self._restart:
            processes.kill(list(pids.values()))
        return pids

    def _start_worker(self, variables: Mapping[str, str]) -> Forked | subprocess.Popen[bytes]:
        env = {**os.environ, **variables}
        log_file = self._spec.log_dir / f"{self._spec.node}.{env['RANK']}.log"
        if self._nursery is not None and (forked := self._nursery.start(env, log_file)) is not None:
            return forked
        with log_file.open("ab") as log:
            return subprocess.Popen(self._spec.program.argv, env=env, stdout=log, stderr=log, start_new_session=True)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._done is not None:
            return self._done if self._is_over() else RunResult(state=WorkerState.HEALTHY)
        self._note_exits(worker_group)
        if self._first_exits:
            self._await_others(worker_group)
            self.kill_workers()
            self._drop_torn_errors()
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state is WorkerState.SUCCEEDED:
            # What a script left behind (busy data loaders among it) must not hold the node.
            self.kill_workers()
            self._on_exit(self._restart, {worker.global_rank: 0 for worker in worker_group.workers})
            # Another node's worker may yet fail on its way out, and its group can't restart without this node.
            self._done = result
            self._rendezvous_of_gang.finish()
            return self._monitor_workers(worker_group)
        if result.state is WorkerState.FAILED:
            self._note_exits(worker_group)
            self._on_exit(self._restart, self._first_exits)
        return result

    def _is_over(self) -> bool:
        """Whether no other node will want another group of this node's workers, who are done."""
        gang = self._rendezvous_of_gang
        try:
            return self._no_more_restarts or gang.all_finished() or gang.is_closed()
        except RuntimeError:
            # The first node is gone, and with it every further group.
            return True

    def _exit_barrier(self) -> None:
        """All nodes are done by now: nobody leaves before."""

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        # Here, and not where the end is asked for: workers may fail, or peers rejoin, at any moment around that.
        if self._no_more_restarts:
            raise _NoMoreGroups
        super()._restart_workers(worker_group)

    def _await_others(self, worker_group: WorkerGroup) -> None:
        """Before the first step nothing is lost by a moment's wait, which shows whether every rank fails alike."""
        deadline = time.monotonic() + OTHERS_TIMEOUT_S
        while (
            self._may_wait()
            and len(self._first_exits) < len(worker_group.workers)
            and min(self._first_exits.values()) > 0
            and time.monotonic() < deadline
        ):
            time.sleep(MONITOR_INTERVAL_S / 2)
            self._note_exits(worker_group)

    def _drop_torn_errors(self) -> None:
        """Remove what workers were killed in the middle of saying: torch fails at it, and no new group starts."""
        for file in self._spec.log_dir.glob(f"{glob.escape(self._spec.node)}.*.r{self._restart}.error.json"):
            try:
                json.loads(file.read_bytes())
            except ValueError:
                file.unlink(missing_ok=True)
            except OSError:
                continue

    def _note_exits(self, worker_group: WorkerGroup) -> None:
        """Remember which ranks failed before anything was killed for it."""
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        ranks = {worker.local_rank: worker.global_rank for worker in worker_group.workers}
        for local, handler in handlers.items():
            code = handler.proc.poll()
            if code:
                self._first_exits.setdefault(ranks[local], code)

    def _shutdown(self, *args: Any, **kwargs: Any) -> None:
        self.kill_workers()
        super()._shutdown(*args, **kwargs)
