"""The node agent: one on every node of the gang. It owns the signals, the worker group and the order of the end.

One thread, the main one, decides; every other thread only puts messages into its queue. The first node's agent leads:
it claims the attempt, learns what a signal means, asks for agreed saves, and requeues, last of all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core.causes import Cause, Notice
from resilient_launch.core.events import EventWriter
from resilient_launch.core.paths import RunPaths
from resilient_launch.job import ending
from resilient_launch.job.agreement import SaveRequest
from resilient_launch.job.attempt import Attempt
from resilient_launch.job.context import Allocation, own_address_towards, worker_variables
from resilient_launch.job.control import ControlDesk, ControlWatch
from resilient_launch.job.elastic import OTHERS_TIMEOUT_S, GangAgent, GroupResult, GroupSpec
from resilient_launch.job.failures import NodeFailures, NodeReport
from resilient_launch.job.gang import Gang
from resilient_launch.job.message import Message
from resilient_launch.job.nursery import Nursery
from resilient_launch.job.page import Action, Outcome, Page, Reason, fast_directory
from resilient_launch.job.program import Program
from resilient_launch.job.publish import Publisher
from resilient_launch.job.requeue import REQUEUE_TIMEOUT_S
from resilient_launch.job.saves import DueSaves
from resilient_launch.job.stragglers import Stragglers
from resilient_launch.job.watch import NodeWatch
from resilient_launch.job.writers import Writers
from resilient_launch.policy.notice import replaces

if TYPE_CHECKING:
    from torch.distributed import TCPStore

TICK_S = 0.2
RETRY_AGREEMENT_S = 3.0
SETTLE_TIMEOUT_S = 8.0
log = logging.getLogger("rlaunch.agent")


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
        program: Program,
        nursery: Nursery | None,
        inbox: queue.SimpleQueue[Message],
        classify: ending.Classifier,
        publisher: Publisher,
        may_leave: Callable[[Sequence[str]], bool],
    ) -> None:
        self._config, self._paths, self._allocation, self._attempt = config, paths, allocation, attempt
        self._inbox, self._classify, self._publisher = inbox, classify, publisher
        self._stragglers = Stragglers(
            enabled=config.restart.requeue_stragglers,
            may_leave=may_leave,
            tell=lambda nodes: self._tell("stragglers", nodes),
        )

        self._gang = Gang(address, attempt.port, allocation, tell=self._tell)
        self.store = self._gang.connect()
        """The agents' store, over a connection of the main thread's own."""
        self._events = EventWriter(
            paths.events / f"a{attempt.number:04d}.n{allocation.node_index:04d}.jsonl",
            attempt=attempt.number,
            restart=0,
            node=allocation.node_index,
        )
        self._saves = DueSaves(config, paths, attempt, allocation, self._events)
        self._page_dir = Path(tempfile.mkdtemp(prefix="rlaunch-pages-", dir=fast_directory()))
        self._writers = Writers(self._page_dir, config.workers_per_node if config.checkpoint.is_async else 0)
        self._pages: list[Page] = []
        self._reached = -1
        self._asked_at = float("-inf")
        self.notice: Notice | None = None
        """The notice that stands."""
        self._num_unexplained = 0
        self.desk = ControlDesk(paths, attempt.number, self._events, retry_s=RETRY_AGREEMENT_S)
        """What was asked of this attempt."""
        self._abort_seen_at: float | None = None
        self._stop_agreed = False
        self._forced = False
        logs = paths.attempt_logs(attempt.number)
        logs.mkdir(parents=True, exist_ok=True)
        self._watch = NodeWatch(config, allocation, log_dir=logs, page_dir=self._page_dir, tell=self._tell)
        self._watch.set_environment()
        self._address = address
        self._elastic = GangAgent(
            GroupSpec(
                program=program,
                num_workers=config.workers_per_node,
                num_nodes=allocation.num_nodes,
                node_index=allocation.node_index,
                max_restarts=config.restart.max_worker_restarts,
                run_id=f"{config.name}-{attempt.number}",
                local_address=address if allocation.is_first else own_address_towards(address),
                store_address=address,
                log_dir=logs,
                node=allocation.node,
                join_timeout_s=600.0,
            ),
            self._gang.connect(),
            nursery=nursery,
            on_group=self._begin_group,
            on_started=self._watch.note_started,
            on_exit=self._on_group_failed,
            may_wait=lambda: not any(page.has_stepped for page in self._pages),
        )
        os.environ.update(worker_variables(paths, allocation, attempt=attempt.number, page_dir=self._page_dir))

    def _tell(self, kind: str, value: Any = None) -> None:
        self._inbox.put(Message(kind=kind, value=value))

    def run(self) -> NodeReport:
        """Run the worker groups to their end, honouring every notice on the way."""
        if self._allocation.is_first:
            self._events.emit(
                "attempt",
                flush=True,
                job_id=self._allocation.job_id,
                slurm_restart_count=self._allocation.slurm_restart_count,
                nodes=list(self._allocation.nodes),
            )
            threading.Thread(target=self._gang.read_forwarded, name="rlaunch-forwarded", daemon=True).start()
            ControlWatch(self._paths, self._attempt.number, lambda request: self._tell("control", request)).start()
        unfit = self._watch.check_node(self._gang.connect, self._paths.directory)
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
            self._gang.end_group()
            self._elastic.kill_workers()
            self._saves.close()
        return self._report(result)

    def settled_notice(self) -> Notice | None:
        """The notice that stands once every signal that was heard is understood.

        A worker may die of the very signal that brings the notice, and its end be known first.
        """
        patience = time.monotonic() + SETTLE_TIMEOUT_S
        while self._num_unexplained or not self._inbox.empty():
            with contextlib.suppress(queue.Empty):
                self._handle(self._inbox.get(timeout=max(patience - time.monotonic(), 0.01)))
            if time.monotonic() > patience:
                break
        return self.notice

    def emit_end(self, cause: Cause, step: int | None) -> None:
        """The attempt's last event."""
        self._events.emit("end", flush=True, cause=cause, step=step)

    def seconds_to_wait(self) -> float:
        """How long the first node may take for its decision."""
        if self.notice is None or self.notice.deadline is None:
            return ending.REPORTS_TIMEOUT_S + REQUEUE_TIMEOUT_S
        return max(self.notice.deadline - time.time(), 1.0)

    def close(self) -> None:
        """Remove what this agent put on its node."""
        self._events.close()
        self._writers.close()
        for page in self._page_dir.iterdir():
            page.unlink(missing_ok=True)
        self._page_dir.rmdir()

    def _run_elastic(self) -> None:
        try:
            if why := self._watch.check_links(self._gang.connect(), self._address):
                self._tell("unlinked", why)
                return
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
                self._num_unexplained -= 1
                self._on_notice(message.value)
            case "group":
                self._on_group_started(*message.value)
            case "exits":
                restart, exits = message.value
                # The pages outlive a killed worker, whose last events do not.
                reached = max((page.step for page in self._pages), default=-1)
                more = self._watch.explain_exits(exits)
                self._events.emit("group_end", flush=True, exits=exits, restart=restart, step=reached, **more)
            case "control":
                if asked := self.desk.take(message.value):
                    self._on_notice(asked)
            case "agreed":
                self.desk.settle(message.value)
            case "hopeless":
                self._on_hopeless(message.value)
            case "event":
                kind, fields = message.value
                self._events.emit(kind, flush=True, **fields)
                if kind == "straggler" and self.notice is None:
                    self._stragglers.consider(fields["scope"], fields["nodes"])
            case "stragglers":
                self._on_notice(self._stragglers.leave(message.value))
            case "unlinked":
                self._watch.blame_links(message.value)
                return self._force(message.value)
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
        # Whatever it means, this attempt ends; a worker that died of it too must not come back meanwhile.
        self._elastic.end_with_this_group()
        if not self._allocation.is_first:
            self._gang.forward_signal(self.store, name)
            return
        self._num_unexplained += 1
        threading.Thread(
            target=lambda: self._tell("notice", self._classify(name)), name="rlaunch-classify", daemon=True
        ).start()

    def _on_notice(self, notice: Notice) -> None:
        standing = self.notice
        if standing is not None and not replaces(notice, standing):
            return
        if standing is not None and standing.cause is Cause.CANCELLED:
            # What was asked for stands; the new word only says how long there is.
            notice = replace(notice, cause=Cause.CANCELLED)
        self.notice = notice
        log.warning("notice: %s, %s", notice.cause, _seconds_left(notice))
        self._events.emit("notice", flush=True, cause=notice.cause, deadline=notice.deadline, source=notice.source)
        self._elastic.end_with_this_group()
        for page in self._pages:
            page.set_notice(notice)
        self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        notice = self.notice
        if notice is not None and not self._stop_agreed:
            deadline = notice.deadline or 0.0
            wish = SaveRequest(action=Action.SAVE_AND_STOP, reason=Reason.NOTICE, deadline=deadline)
            if self._gang.ask(wish):
                self._asked_at = time.monotonic()

    def _on_stop_agreed(self, step: int | None) -> None:
        self._stop_agreed = True
        self._elastic.end_with_this_group()
        if step is None:
            log.info(why := "no rank of this worker group has begun to step: leaving at once")
            self._events.emit("decision", flush=True, what="no emergency checkpoint", why=why)
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
        self._reached = max([self._reached, *(page.step for page in self._pages)])
        self._pages = pages
        self._events.identify(restart=restart)
        self._gang.begin_group(restart, pages)
        if self._allocation.is_first:
            self._saves.group_started(pages)
        self._watch.begin_group(self._gang.connect_group(), restart, ranks, pages)
        if self.notice is not None:
            for page in pages:
                page.set_notice(self.notice)
            self._ask_to_stop()

    def _on_group_failed(self, restart: int, exits: Mapping[int, int]) -> None:
        """In the elastic agent's thread, before it starts another group: is there any use in one?"""
        self._tell("exits", (restart, dict(exits)))
        if self.notice is not None or not any(exits.values()):
            return
        # A history that can't be read is no reason against another try.
        with contextlib.suppress(OSError):
            if why := self._failures(exits).why_no_restart(self._config, restart, self._pages):
                self._elastic.end_with_this_group()
                self._tell("hopeless", why)

    def _failures(self, exits: Mapping[int, int]) -> NodeFailures:
        return NodeFailures.read(self._paths, self._attempt.number, self._allocation.node, self._elastic.restart, exits)

    def _on_hopeless(self, why: str) -> None:
        """No further worker group: the other nodes must not wait for this one to join."""
        self._forced = True
        self._events.emit("decision", flush=True, what="no restart in this attempt", why=why)
        with contextlib.suppress(RuntimeError):
            self.store.set("abort", why)

    # What the clock asks for.

    def _tick(self) -> GroupResult | None:
        now = time.monotonic()
        notice = self.notice
        if notice is not None:
            if notice.deadline is not None and time.time() > notice.deadline - ending.reserve_s(notice):
                return self._force("the deadline came before every rank had left")
            if not self._stop_agreed and now - self._asked_at > RETRY_AGREEMENT_S:
                self._ask_to_stop()
        elif self._allocation.is_first and (wish := self._saves.next_wish(now, self._pages)):
            self._gang.ask(wish)
        if self._allocation.is_first and self._pages:
            self._publish(now)
        if notice is None and self.desk.is_due(now):
            self._gang.ask(SaveRequest(action=Action.SAVE, reason=Reason.REQUEST))
        if not self._forced and self.store.check(["abort"]):
            self._abort_seen_at = self._abort_seen_at or now
            # Ranks that had not begun may be failing by themselves just now, and what of is worth knowing.
            if any(page.has_stepped for page in self._pages) or now - self._abort_seen_at > OTHERS_TIMEOUT_S:
                return self._force("another node's agent gave up")
        return None

    def _publish(self, now: float) -> None:
        newest = max(self._pages, key=lambda page: page.saved_mono)
        saved_at = time.time() - (now - newest.saved_mono) if newest.saved_mono else self._attempt.claimed_at
        self._publisher.offer(step=max(newest.saved_step, 0), saved_at=saved_at)

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

    def _report(self, result: GroupResult) -> NodeReport:
        outcomes = {page.outcome for page in self._pages}
        # A script may end before the agreed step, or never attach: with no rank told to stop, a clean exit is the end.
        all_finished = outcomes == {Outcome.FINISHED} or not (self._stop_agreed or Outcome.STOPPED in outcomes)
        reached = max([self._reached, *(page.step for page in self._pages)])
        diagnosis = None if result.ok else self._watch.diagnosis
        return self._failures(result.exits).report(
            finished=result.ok and all_finished,
            end_step=reached if reached >= 0 else None,
            saved_step=max((page.saved_step for page in self._pages if page.saved_step >= 0), default=None),
            num_ranks=self._config.workers_per_node,
            error=result.error,
            blame=diagnosis.cause if diagnosis else None,
            blame_why=diagnosis.why if diagnosis else "",
            blame_rank=diagnosis.rank if diagnosis else None,
            suspects=diagnosis.suspects if diagnosis else self._stragglers.left,
        )


def _seconds_left(notice: Notice) -> str:
    return "no deadline" if notice.deadline is None else f"{notice.deadline - time.time():.0f} s left"
