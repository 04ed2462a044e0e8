"""Where a worker finds itself: under a node agent, or alone (plain python, torchrun, whatever sends TERM)."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilient_launch.checkpoint.store import Digesting
from resilient_launch.config import load
from resilient_launch.config.schema import CheckpointConfig, RestartConfig
from resilient_launch.core.causes import Cause, Notice
from resilient_launch.core.errors import EXIT_OK, EXIT_TEMPORARY, UsageError
from resilient_launch.core.events import EventWriter
from resilient_launch.core.paths import RunPaths
from resilient_launch.job import agreement, signals, stacks
from resilient_launch.job.attempt import (
    Attempt,
    AttemptRecord,
    claim,
    last_group_cause,
    last_step,
    read_attempts,
    read_ends,
    record_end,
)
from resilient_launch.job.branches import read_branches
from resilient_launch.job.context import reachable_at
from resilient_launch.job.page import Action, Outcome, Page, Reason
from resilient_launch.job.prospect import not_to_use
from resilient_launch.job.rework import ReworkCheck, read_logged
from resilient_launch.job.writers import socket_of
from resilient_launch.policy.auto_interval import FALLBACK_S
from resilient_launch.policy.notice import DEFAULT_GRACE_S

if TYPE_CHECKING:
    from torch.distributed import Store

    from resilient_launch.checkpoint.arrays import ArrayCheckpointer
    from resilient_launch.checkpoint.background.saving import Background
    from resilient_launch.checkpoint.checkpointer import Checkpointer
    from resilient_launch.checkpoint.store import Board

STORE_TIMEOUT = timedelta(seconds=300)
THREADS_END_S = 3.0


@dataclass(frozen=True, kw_only=True)
class History:
    """What happened before this worker group: the highest count of completed steps, and why the last one ended."""

    last_step: int
    last_cause: Cause | None


class Workplace:
    """What a Run needs to know of its surroundings. This base is a worker under a node agent."""

    asks_agreement = False
    """Whether the worker itself asks for agreed saves, for lack of an agent that does."""
    stopped_exit_code = EXIT_OK
    """The exit code of a worker that saved and left. Under an agent the verdict is in a file, and 0 is a clean end."""

    has_arrays = False
    """Whether the state is an ArrayState, which is saved without torch."""

    writer_socket: Path | None = None
    """Where the node agent's checkpoint writer for this rank listens; None where the worker starts one itself."""

    goes_on_from_memory = True
    """Whether what lies in the nodes' memory is for the worker group that starts again there."""

    is_elastic = False
    """Whether the number of nodes, and so of ranks, may be another in every attempt."""
    global_batch: int | None = None
    """Samples of one step over all ranks, where the configuration says."""

    same_step = RestartConfig().same_step
    """How often a checkpoint may lead nowhere before an older one is taken."""

    def __init__(self, run_dir: Path, page: Page, config: CheckpointConfig) -> None:
        env = os.environ
        self.paths, self.page, self.config = RunPaths(run_dir), page, config
        self.rank, self.world_size = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
        self.local_rank = int(env.get("LOCAL_RANK", "0"))
        self.restart = int(env.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.attempt = int(env.get("RLAUNCH_ATTEMPT", "0"))
        self.node_index = int(env.get("RLAUNCH_NODE_INDEX", "0"))
        self.slurm_restart_count = int(env.get("SLURM_RESTART_COUNT") or 0)
        self.pid = os.getpid()
        self.every_steps = config.every.steps
        self.metrics: dict[str, float] = {}
        self.save_timeout_s = config.save_timeout_s

    @cached_property
    def store(self) -> Store:
        """A key-value store that all ranks of this worker group share, apart from the training process group's."""
        return self.connect()

    def connect(self) -> Store:
        """Another connection to that store: a blocking wait on a shared one would hold up everybody else on it."""
        from torch.distributed import HashStore, PrefixStore, TCPStore

        if self.world_size == 1:
            return HashStore()
        client = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=STORE_TIMEOUT,
        )
        return PrefixStore(f"rlaunch/{self.restart}", client)

    @cached_property
    def checkpointer(self) -> Checkpointer | ArrayCheckpointer:
        claimed = self._claimed()
        common: dict[str, Any] = {
            "run_id": str(self._run_record().get("id", self.paths.name)),
            "attempt": self.attempt,
            "restart": self.restart,
            "code_version": claimed.code_version if claimed else "",
            "keep": self.config.retention(),
            "allowed": frozenset(claimed.checkpoints) if claimed else None,
            "passed_over": self._passed_over(),
            "metrics": self.metrics,
            "without_rename": self.config.commit_by == "manifest",
            "digesting": Digesting(algorithm=self.config.digest),
        }
        if self.has_arrays:
            from resilient_launch.checkpoint.arrays import ArrayCheckpointer

            if self.world_size > 1:
                raise UsageError(f"a state of arrays on {self.world_size} workers", why="is one process's own")
            return ArrayCheckpointer(self.paths.checkpoints, **common)
        from resilient_launch.checkpoint.checkpointer import Checkpointer
        from resilient_launch.checkpoint.torch_board import StoreBoard

        board = StoreBoard(self.store, "checkpoints")
        return Checkpointer(
            self.paths.checkpoints,
            **common,
            rank=self.rank,
            world_size=self.world_size,
            board=board,
            background=self._background(board) if self.config.is_async else None,
            save_timeout_s=self.save_timeout_s,
            on_topology_change="error" if self.config.stops_on("topology") and not self.is_elastic else "warn",
            on_code_change="error" if self.config.stops_on("code") else "warn",
            allow=self.config.tolerated,
        )

    def close_checkpointer(self, timeout_s: float | None) -> None:
        """Wait for a save in flight, at most so long, and let go of the writer; where there ever was a checkpointer."""
        made = self.__dict__.get("checkpointer")
        if made is not None:
            made.close(timeout_s)

    def _background(self, board: Board) -> Background:
        from resilient_launch.checkpoint.background.saving import Background

        num_sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        many_nodes = num_sharing < self.world_size
        return Background(
            board,
            rank=self.rank,
            world_size=self.world_size,
            socket=self.writer_socket,
            num_sharing=num_sharing,
            has_spare=self.config.local_every_steps is not None,
            is_left_behind=self.goes_on_from_memory,
            addresses=reachable_at(os.environ["MASTER_ADDR"]) if many_nodes else ("127.0.0.1",),
        )

    def history(self) -> History:
        """Read from the run directory; the first rank alone needs it."""
        if self.rank != 0:
            return History(last_step=0, last_cause=None)
        ends = read_ends(self.paths)
        earlier = [ends[number] for number in sorted(ends) if number < self.attempt]
        here = last_step(self.paths, self.attempt) if self.restart else None
        steps = [end.end_step or 0 for end in earlier] + [here or 0]
        last = Cause(earlier[-1].cause) if earlier else None
        if self.restart:
            last = last_group_cause(self.paths, self.attempt, self.restart - 1)
        return History(last_step=max(steps), last_cause=last)

    def rework_check(self, resume_step: int, events: EventWriter) -> ReworkCheck:
        """What the steps from ``resume_step`` on must come out as, as far as this lineage has logged them before."""
        branches = read_branches(self.paths)
        before = read_logged(
            self.paths,
            until=(self.attempt, self.restart),
            since_step=resume_step,
            first_attempt=branches[-1].next_attempt if branches else 0,
        )
        return ReworkCheck(before, events)

    def _passed_over(self) -> dict[str, str]:
        """Checkpoints not to go on from, and why. The first rank alone chooses for all, so it alone has to know."""
        if self.rank != 0:
            return {}
        return not_to_use(self.paths, until=(self.attempt, self.restart), same_step=self.same_step)

    def wants_agreement(self) -> bool:
        """Whether this worker should ask for an agreed save now."""
        return False

    def ask_agreement(self) -> None:
        """Ask for the save that ``wants_agreement`` found due."""

    def close(self, outcome: Outcome, step: int) -> None:
        """The script's part is over."""

    def _claimed(self) -> Attempt | None:
        return next((each for each in read_attempts(self.paths) if each.number == self.attempt), None)

    def _run_record(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(self.paths.run.read_bytes())
            if isinstance(record, dict):
                return record
        return {}


class LoneWorkplace(Workplace):
    """A worker without a node agent: it hears the signals itself and agrees with the other ranks directly.

    The handlers only set a flag. ``grace_s`` is how long the supervisor waits between TERM and KILL.
    """

    asks_agreement = True
    stopped_exit_code = EXIT_TEMPORARY

    def __init__(self, run_dir: Path, config: CheckpointConfig, grace_s: float) -> None:
        super().__init__(run_dir, Page.private(), config)
        self._grace_s = grace_s
        self._signal = ""
        self._told = False
        self._saved_at = time.monotonic()
        for number in signals.NOTICE_SIGNALS:
            signal.signal(number, self._set_flag)
        self.attempt = self._claim()
        participant = agreement.Participant(
            self._agents_store(),
            index=self.rank,
            pages=[self.page],
            on_stop=lambda step: None,
            on_event=lambda status, number, step, reason: None,
            on_lost=lambda: None,
        )
        self._threads: list[threading.Thread] = [participant]
        if self.rank == 0:
            store = self._agents_store()
            self._threads.append(agreement.Leader(store, num_participants=self.world_size, pages=[self.page]))
        for thread in self._threads:
            thread.start()
        self._requests = self._agents_store()

    def _set_flag(self, number: int, frame: object) -> None:
        self._signal = signal.Signals(number).name

    def _agents_store(self) -> Store:
        from torch.distributed import PrefixStore

        return PrefixStore("agents", self.store if self.world_size == 1 else self.connect())

    def _claim(self) -> int:
        """The first rank claims the next attempt; the others learn its number."""
        if self.rank != 0:
            return int(self.store.get("attempt"))
        for directory in self.paths.all():
            directory.mkdir(parents=True, exist_ok=True)
        attempt = claim(
            self.paths,
            job_id=f"{os.uname().nodename}-{self.pid}",
            slurm_restart_count=self.restart,
            nodes=[os.uname().nodename],
            addresses=[],
            port=0,
            code_version="",
        )
        self._record_silent_ends(attempt.number)
        self.store.set("attempt", str(attempt.number))
        return attempt.number

    def _record_silent_ends(self, number: int) -> None:
        """Write down that attempts before this one ended without a word: killed, or their machine was lost."""
        ends = read_ends(self.paths)
        for older in read_attempts(self.paths):
            if older.number < number and older.number not in ends:
                record_end(
                    self.paths,
                    AttemptRecord(
                        number=older.number,
                        cause=Cause.CRASH,
                        end_step=last_step(self.paths, older.number),
                        ended_at=time.time(),
                        action="leave",
                        why="ended without a word",
                    ),
                )

    def wants_agreement(self) -> bool:
        if self._told:
            return False
        if self._signal:
            return True
        # Nobody here sees the run's other attempts end, so there is nothing to solve the interval from.
        every_s = FALLBACK_S if self.config.every.auto else self.config.every.seconds
        if self.rank or every_s is None:
            return False
        return time.monotonic() - max(self._saved_at, self.page.saved_mono) > every_s

    def ask_agreement(self) -> None:
        if not self._signal:
            self._saved_at = time.monotonic()
            agreement.request(self._requests, agreement.SaveRequest(action=Action.SAVE, reason=Reason.TIME))
            return
        self._told = True
        deadline = time.time() + self._grace_s
        self.page.set_notice(Notice(cause=Cause.YIELDED, deadline=deadline, source=self._signal))
        wish = agreement.SaveRequest(action=Action.SAVE_AND_STOP, reason=Reason.NOTICE, deadline=deadline)
        agreement.request(self._requests, wish)

    def close(self, outcome: Outcome, step: int) -> None:
        # A thread that returns from the store while the interpreter goes down would abort the process.
        with contextlib.suppress(ConnectionError):
            agreement.finish(self._requests)
        for thread in self._threads:
            thread.join(THREADS_END_S)
        if self.rank == 0 and outcome is not Outcome.NONE:
            finished = outcome is Outcome.FINISHED
            record_end(
                self.paths,
                AttemptRecord(
                    number=self.attempt,
                    cause=Cause.FINISHED if finished else Cause.YIELDED,
                    end_step=step,
                    ended_at=time.time(),
                    action="done" if finished else "leave",
                    why="the last step is done" if finished else f"{self._signal}: saved and left",
                ),
            )


def find(run_dir: Path | None, config: CheckpointConfig | None, grace_s: float | None) -> Workplace:
    """The workplace of this process, from its environment."""
    pages = os.environ.get("RLAUNCH_PAGE_DIR")
    if pages is None:
        grace = grace_s if grace_s is not None else float(os.environ.get("RLAUNCH_GRACE_S", DEFAULT_GRACE_S))
        return LoneWorkplace(run_dir or Path("runs/default").absolute(), config or CheckpointConfig(), grace)
    directory = Path(os.environ["RLAUNCH_RUN_DIR"])
    signals.shield()
    # With the signals shut out, data loaders must still obey the trainer, and none may outlive it.
    signals.guard_forked_children()
    atexit.register(_kill_children)
    # The interpreter's last collections walk all of torch: 0.9 s of CPU a rank against 0.16, when the end is near.
    atexit.register(gc.freeze)
    own = Path(pages) / f"r{os.environ['RLAUNCH_RESTART']}.{os.environ['LOCAL_RANK']}"
    stacks.register(own.with_name(f"{own.name}.stack"))
    launched = load(RunPaths(directory).config, frozen=True)
    found = Workplace(directory, Page.open(own), launched.checkpoint)
    found.same_step = launched.restart.same_step
    found.writer_socket = socket_of(Path(pages), found.local_rank)
    found.is_elastic = launched.nodes.min < launched.nodes.max
    found.global_batch = launched.global_batch
    if launched.stagger.group is not None:
        # Saves wait for their turn, so the agent asks for them, those that are due by steps too.
        found.every_steps = None
    return found


def _kill_children() -> None:
    """multiprocessing waits at exit for children it sent TERM to; with TERM blocked in them it would wait for ever."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
