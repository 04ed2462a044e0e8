"""The node agent: one on every node of the gang. It owns the signals, the worker group and the order of the end.

One thread, the main one, decides; every other thread only puts messages into its queue. The first node's agent leads:
it claims the attempt, learns what a signal means, asks for agreed saves, and requeues, last of all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core.causes import Cause, Notice
from resilient_launch.core.events import EventWriter
from resilient_launch.core.paths import RunPaths
from resilient_launch.job import agreement, ending
from resilient_launch.job.agreement import Leader, Participant, SaveRequest
from resilient_launch.job.attempt import Attempt
from resilient_launch.job.context import Allocation, own_address_towards
from resilient_launch.job.elastic import GangAgent, GroupResult, GroupSpec
from resilient_launch.job.page import Action, Outcome, Page, Reason
from resilient_launch.job.watch import NodeWatch

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore

TICK_S = 0.2
RETRY_AGREEMENT_S = 3.0
log = logging.getLogger("rlaunch.agent")


@dataclass(frozen=True, kw_only=True)
class Message:
    """What a thread tells the main one. ``kind`` names it, ``value`` is its content."""

    kind: str
    value: Any = None


class NodeAgent:
    """Runs one node's part of one attempt. ``run`` returns how it ended for this node."""

    def __init__(
        self,
        *,
        config: LaunchConfig,
        paths: RunPaths,
        allocation: Allocation,
        attempt: Attempt,
        store: TCPStore,
        address: str,
        argv: Sequence[str],
        inbox: queue.SimpleQueue[Message],
        classify: ending.Classifier,
    ) -> None:
        from torch.distributed import PrefixStore, TCPStore

        self._config, self._paths, self._allocation, self._attempt = config, paths, allocation, attempt
        self._inbox, self._classify = inbox, classify

        def connect() -> Store:
            # One connection a thread: a blocking wait on a shared one would hold up everybody else on it.
            client = TCPStore(address, attempt.port, is_master=False, wait_for_workers=False)
            return PrefixStore("rlaunch", client)

        self._connect = connect
        self.store = connect()
        """The agents' store, over a connection of the main thread's own."""
        self._events = EventWriter(
            paths.events / f"a{attempt.number:04d}.n{allocation.node_index:04d}.jsonl",
            attempt=attempt.number,
            restart=0,
            node=allocation.node_index,
        )
        self._page_dir = Path(tempfile.mkdtemp(prefix="rlaunch-pages-", dir=_fast_dir()))
        self._pages: list[Page] = []
        self._reached = -1
        self._agreement_store: Store | None = None
        self._group_began = time.monotonic()
        self._asked_at = float("-inf")
        self._asked_save_at = float("-inf")
        self.notice: Notice | None = None
        """The notice that stands."""
        self._stop_agreed = False
        self._forced = False
        logs = paths.attempt_logs(attempt.number)
        logs.mkdir(parents=True, exist_ok=True)
        self._watch = NodeWatch(config, allocation, log_dir=logs, page_dir=self._page_dir, tell=self._tell)
        self._watch.set_environment()
        self._elastic = GangAgent(
            GroupSpec(
                argv=argv,
                num_workers=config.workers_per_node,
                num_nodes=allocation.num_nodes,
                max_restarts=config.restart.max_worker_restarts,
                rendezvous_id=f"{config.name}-{attempt.number}",
                local_address=address if allocation.is_first else own_address_towards(address),
                store_address=address,
                is_first=allocation.is_first,
                error_dir=logs,
                node=allocation.node,
                join_timeout_s=600.0,
            ),
            store,
            on_group=self._begin_group,
            on_exit=lambda restart, exits: self._tell("exits", (restart, dict(exits))),
        )
        os.environ.update(
            RLAUNCH_RUN_DIR=str(paths.directory),
            RLAUNCH_ATTEMPT=str(attempt.number),
            RLAUNCH_PAGE_DIR=str(self._page_dir),
            RLAUNCH_LOG_DIR=str(logs),
            RLAUNCH_NODE=allocation.node,
            RLAUNCH_NODE_INDEX=str(allocation.node_index),
        )

    def _tell(self, kind: str, value: Any = None) -> None:
        self._inbox.put(Message(kind=kind, value=value))

    def run(self) -> ending.NodeReport:
        """Run the worker groups to their end, honouring every notice on the way."""
        if self._allocation.is_first:
            self._events.emit(
                "attempt",
                flush=True,
                job_id=self._allocation.job_id,
                slurm_restart_count=self._allocation.slurm_restart_count,
                nodes=list(self._allocation.nodes),
            )
            threading.Thread(target=self._read_forwarded, name="rlaunch-forwarded", daemon=True).start()
        unfit = self._watch.check_node(self._connect, self._paths.directory)
        result = self._force(unfit) if unfit else None
        if result is None:
            threading.Thread(target=self._run_elastic, name="rlaunch-elastic", daemon=True).start()
        try:
            while result is None:
                with contextlib.suppress(queue.Empty):
                    result = self._handle(self._inbox.get(timeout=TICK_S))
                if result is None:
                    result = self._tick()
        finally:
            self._watch.end_group()
            self._end_agreement()
            self._elastic.kill_workers()
        return self._report(result)

    def emit_end(self, cause: Cause, step: int | None) -> None:
        """The attempt's last event."""
        self._events.emit("end", flush=True, cause=cause, step=step)

    def seconds_to_wait(self) -> float:
        """How long the first node may take for its decision."""
        if self.notice is None or self.notice.deadline is None:
            return ending.REPORTS_TIMEOUT_S + ending.REQUEUE_TIMEOUT_S
        return max(self.notice.deadline - time.time(), 1.0)

    def close(self) -> None:
        """Remove what this agent put on its node."""
        self._events.close()
        for page in self._page_dir.iterdir():
            page.unlink(missing_ok=True)
        self._page_dir.rmdir()

    def _run_elastic(self) -> None:
        try:
            result = self._elastic.run_group()
        except Exception as error:
            log.exception("the elastic agent failed")
            result = GroupResult(ok=False, error=f"elastic agent: {error}")
        self._tell("ended", result)

    def _handle(self, message: Message) -> GroupResult | None:
        match message.kind:
            case "ended":
                ended: GroupResult = message.value
                return ended
            case "signal":
                self._on_signal(*message.value)
            case "notice":
                self._on_notice(message.value)
            case "group":
                self._on_group_started(*message.value)
            case "exits":
                restart, exits = message.value
                # The pages outlive a killed worker, whose last events do not.
                reached = max((page.step for page in self._pages), default=-1)
                more = self._watch.explain_exits(exits)
                self._events.emit("group_end", flush=True, exits=exits, restart=restart, step=reached, **more)
            case "event":
                kind, fields = message.value
                self._events.emit(kind, flush=True, **fields)
            case "hang":
                restart, blame = message.value
                self._watch.blame_hang(blame)
                self._elastic.kill_workers(of_restart=restart)
            case "stop":
                self._on_stop_agreed(message.value)
            case "lost":
                return self._force(message.value or "the first node's agent is gone")
        return None

    # Signals and notices.

    def _on_signal(self, name: str, node: str | None) -> None:
        """``node`` is where it arrived; None for this one."""
        log.info("%s reached %s", name, node or self._allocation.node)
        if not self._allocation.is_first:
            try:
                number = self.store.add("signal/count", 1)
                agreement.post(self.store, f"signal/{number}", {"name": name, "node": self._allocation.node})
            except (RuntimeError, ConnectionError):
                self._tell("lost")
            return
        threading.Thread(
            target=lambda: self._tell("notice", self._classify(name)), name="rlaunch-classify", daemon=True
        ).start()

    def _read_forwarded(self) -> None:
        """On the first node: signals that reached other nodes only."""
        store, number = self._connect(), 1
        with contextlib.suppress(ConnectionError):
            while True:
                message = agreement.wait(store, f"signal/{number}")
                number += 1
                self._tell("signal", (str(message["name"]), str(message["node"])))

    def _on_notice(self, notice: Notice) -> None:
        standing = self.notice
        if standing is not None and not _replaces(notice, standing):
            return
        self.notice = notice
        log.warning("notice: %s, %s", notice.cause, _seconds_left(notice))
        self._events.emit("notice", flush=True, cause=notice.cause, deadline=notice.deadline, source=notice.source)
        self._elastic.end_with_this_group()
        for page in self._pages:
            page.set_notice(notice)
        self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        notice = self.notice
        if notice is None or self._stop_agreed or self._agreement_store is None:
            return
        self._asked_at = time.monotonic()
        self._ask(SaveRequest(action=Action.SAVE_AND_STOP, reason=Reason.NOTICE, deadline=notice.deadline or 0.0))

    def _ask(self, wish: SaveRequest) -> None:
        if self._agreement_store is None:
            return
        try:
            agreement.request(self._agreement_store, wish)
        except ConnectionError:
            self._tell("lost")

    def _on_stop_agreed(self, step: int | None) -> None:
        self._stop_agreed = True
        self._elastic.end_with_this_group()
        if step is None:
            log.info("no step was begun since the last checkpoint: leaving at once")
            self._elastic.kill_workers()
        else:
            log.info("every rank saves at step %d and leaves", step)

    # Worker groups and their agreement.

    def _begin_group(self, restart: int, ranks: Sequence[int]) -> None:
        """Called by the elastic agent before a group starts: make its pages."""
        os.environ["RLAUNCH_RESTART"] = str(restart)
        pages = [Page.create(self._page_dir / f"r{restart}.{local}") for local in range(len(ranks))]
        self._tell("group", (restart, ranks, pages))

    def _on_group_started(self, restart: int, ranks: Sequence[int], pages: list[Page]) -> None:
        self._end_agreement()
        self._reached = max([self._reached, *(page.step for page in self._pages)])
        self._pages = pages
        self._group_began = time.monotonic()
        self._events.identify(restart=restart)
        self._agreement_store = self._group_store()
        Participant(
            self._group_store(),
            index=self._allocation.node_index,
            pages=pages,
            on_stop=lambda step: self._tell("stop", step),
            on_event=lambda status, number, step, reason: self._events.emit(
                "agreement", flush=True, status=status, round=number, step=step, reason=reason
            ),
            on_lost=lambda: self._tell("lost"),
        ).start()
        if self._allocation.is_first:
            Leader(self._group_store(), num_participants=self._allocation.num_nodes, pages=pages).start()
        self._watch.begin_group(self._group_store(), restart, ranks, pages)
        if self.notice is not None:
            for page in pages:
                page.set_notice(self.notice)
            self._ask_to_stop()

    def _group_store(self) -> Store:
        """A connection of its own into the newest group's key space."""
        from torch.distributed import PrefixStore

        return PrefixStore(f"group/{self._elastic.restart}", self._connect())

    def _end_agreement(self) -> None:
        if self._agreement_store is not None:
            agreement.finish(self._agreement_store)
        self._agreement_store = None

    # What the clock asks for.

    def _tick(self) -> GroupResult | None:
        now = time.monotonic()
        notice = self.notice
        if notice is not None:
            if notice.deadline is not None and time.time() > notice.deadline - ending.reserve_s(notice):
                return self._force("the deadline came before every rank had left")
            if not self._stop_agreed and now - self._asked_at > RETRY_AGREEMENT_S:
                self._ask_to_stop()
        elif self._allocation.is_first and self._save_is_due(now):
            self._asked_save_at = now
            self._ask(SaveRequest(action=Action.SAVE, reason=Reason.TIME))
        if not self._forced and self.store.check(["abort"]):
            return self._force("another node's agent gave up")
        return None

    def _save_is_due(self, now: float) -> bool:
        every_s = self._config.checkpoint.every.seconds
        if every_s is None or not self._pages or min(page.step for page in self._pages) < 0:
            return False
        last = max(self._group_began, self._asked_save_at, *(page.saved_mono for page in self._pages))
        return now - last >= every_s

    def _force(self, why: str) -> GroupResult:
        """End the workers now, on every node."""
        log.error("ending the workers: %s", why)
        self._forced = True
        self._events.emit("decision", flush=True, what="end the workers", why=why)
        with contextlib.suppress(RuntimeError):
            self.store.set("abort", why)
        self._elastic.end_with_this_group()
        self._elastic.kill_workers()
        return GroupResult(ok=False, error=why)

    def _report(self, result: GroupResult) -> ending.NodeReport:
        outcomes = {page.outcome for page in self._pages}
        # A script may end before the agreed step, or never attach: with no rank told to stop, a clean exit is the end.
        all_finished = outcomes == {Outcome.FINISHED} or not (self._stop_agreed or Outcome.STOPPED in outcomes)
        reached = max([self._reached, *(page.step for page in self._pages)])
        diagnosis = None if result.ok else self._watch.diagnosis
        return ending.NodeReport(
            node=self._allocation.node,
            finished=result.ok and all_finished,
            end_step=reached if reached >= 0 else None,
            saved_step=max((page.saved_step for page in self._pages if page.saved_step >= 0), default=None),
            first_rank=result.first_rank if diagnosis is None or diagnosis.rank is None else diagnosis.rank,
            error=diagnosis.why if diagnosis else self._explain(result),
            blame=diagnosis.cause if diagnosis else None,
        )

    def _explain(self, result: GroupResult) -> str:
        """What the first rank that failed here had to say: its error file, or the end of its log."""
        if result.first_rank is None:
            return result.error
        code = result.exits[result.first_rank]
        end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        logs = self._paths.attempt_logs(self._attempt.number)
        stem = f"{self._allocation.node}.{result.first_rank}"
        detail = ending.read_error(logs / f"{stem}.r{self._elastic.restart}.error.json", logs / f"{stem}.log")
        return f"rank {result.first_rank} on {self._allocation.node} {end}\n{detail}".rstrip()


def _replaces(new: Notice, standing: Notice) -> bool:
    """A cancel overrules what stands; otherwise the first cause stands, unless the end has come nearer."""
    if standing.cause is Cause.CANCELLED:
        return False
    if new.cause is Cause.CANCELLED or standing.cause is Cause.YIELDED:
        return True
    if new.deadline is None or new.cause is Cause.YIELDED:
        return False
    return standing.deadline is None or new.deadline < standing.deadline - 1.0


def _seconds_left(notice: Notice) -> str:
    return "no deadline" if notice.deadline is None else f"{notice.deadline - time.time():.0f} s left"


def _fast_dir() -> str:
    """Memory where there is some: pages are touched every step."""
    shared_memory = Path("/dev/shm")
    return str(shared_memory) if os.access(shared_memory, os.W_OK) else tempfile.gettempdir()
