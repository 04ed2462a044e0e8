"""The end, in order: ranks leave, nodes report, the first node decides, writes it down, and requeues last."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resilient_launch.cluster.base import Scheduler
from resilient_launch.core import durable
from resilient_launch.core.causes import Cause, Notice, RunState
from resilient_launch.core.errors import RefusedError, RlaunchError
from resilient_launch.core.paths import RunPaths
from resilient_launch.job import agreement
from resilient_launch.job.attempt import (
    Attempt,
    AttemptRecord,
    last_notice,
    last_step,
    read_attempts,
    read_ends,
    record_end,
)
from resilient_launch.job.context import Allocation
from resilient_launch.policy import cause as cause_policy
from resilient_launch.policy import notice as notice_policy
from resilient_launch.policy.requeue import AttemptEnd, Decision, decide

if TYPE_CHECKING:
    from torch.distributed import Store

log = logging.getLogger("rlaunch.agent")
Classifier = Callable[[str], Notice]
RESERVE_S = 2.0
REPORTS_TIMEOUT_S = 60.0
REQUEUE_TIMEOUT_S = 120.0
FAREWELL_S = 3.0
_ERROR_TAIL_CHARS = 4000


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """How one node's part of an attempt ended. Steps are counts of completed ones."""

    node: str
    finished: bool
    end_step: int | None
    saved_step: int | None
    first_rank: int | None
    error: str


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """What the first node decided for the gang."""

    cause: Cause
    decision: Decision
    requeued: bool


def reserve_s(notice: Notice) -> float:
    """How long before its deadline a notice makes the agents stop waiting for their ranks: time to requeue."""
    return RESERVE_S if notice.cause is not Cause.CANCELLED else RESERVE_S / 2


def classifier(scheduler: Scheduler, allocation: Allocation, *, signal_lead_s: float, kill_wait_s: float) -> Classifier:
    """A function that asks Slurm what a signal means. A controller that does not answer leaves it to the clock."""

    def classify(signal_name: str) -> Notice:
        try:
            view = scheduler.show(allocation.job_id)
        except RlaunchError as error:
            log.warning("%s", error)
            view = None
        return notice_policy.classify(
            signal_name,
            now=time.time(),
            job_state=view.state if view else None,
            preempt_time=view.preempt_time if view else None,
            end_time=view.end_time if view else allocation.end_time,
            kill_wait_s=kill_wait_s,
            signal_lead_s=signal_lead_s,
            job_reason=view.reason if view else "",
            is_requeued=view is not None and (view.restart_count or 0) > allocation.slurm_restart_count,
        )

    return classify


def read_error(error_file: Path, log_file: Path) -> str:
    """What a failed rank left: the message of its error file, or the end of its log."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        message = json.loads(error_file.read_bytes())["message"]
        text = message if isinstance(message, str) else message["extraInfo"]["py_callstack"]
        return str(text)[-_ERROR_TAIL_CHARS:]
    with contextlib.suppress(OSError):
        return log_file.read_bytes()[-_ERROR_TAIL_CHARS:].decode(errors="replace")
    return ""


def report_and_wait(store: Store, allocation: Allocation, report: NodeReport, *, timeout_s: float) -> str:
    """On every node but the first: report, and stay until the first node has decided, for ``timeout_s`` at most.

    Leaving earlier could end the batch script before the requeue is certain, which is final on Slurm before 24.05.
    """
    try:
        agreement.post(store, f"left/{allocation.node_index}", asdict(report))
        word = agreement.read(store, "decision", timeout_s)
        store.add("gone", 1)
    except (ConnectionError, RuntimeError):
        return "the first node's agent is gone"
    return str(word["action"]) if word else "no word from the first node's agent"


def conclude(
    *,
    store: Store,
    scheduler: Scheduler,
    paths: RunPaths,
    allocation: Allocation,
    attempt: Attempt,
    report: NodeReport,
    standing_notice: Callable[[], Notice | None],
    max_failures: int,
) -> Conclusion:
    """On the first node: gather the reports, decide, write it down, requeue, and tell the others.

    ``standing_notice`` is asked again once all nodes have reported: another node's signal may have come meanwhile.
    """
    deadline = time.time() + REPORTS_TIMEOUT_S
    notice = standing_notice()
    if notice is not None and notice.deadline is not None:
        deadline = min(deadline, notice.deadline - reserve_s(notice) / 2)
    reports = [report, *_gather(store, range(1, allocation.num_nodes), deadline)]
    notice = standing_notice()
    missing = allocation.num_nodes - len(reports)
    cause = cause_policy.of_reports(
        finished=[each.finished for each in reports],
        num_missing=missing,
        notice=notice.cause if notice else None,
    )
    end_step = max((each.end_step for each in reports if each.end_step is not None), default=None)
    decision = decide(
        AttemptEnd(cause=cause, end_step=end_step), earlier_ends(paths, attempt.number), max_failures=max_failures
    )
    failed = next((each for each in reports if each.first_rank is not None), None)
    error = failed.error if failed and cause is Cause.CRASH else ""
    log.info("attempt %d: %s at step %s: %s (%s)", attempt.number, cause, end_step, decision.action, decision.why)
    record_end(
        paths,
        AttemptRecord(
            number=attempt.number,
            cause=cause,
            end_step=end_step,
            ended_at=time.time(),
            action=decision.action,
            why=decision.why,
            first_rank=failed.first_rank if failed else None,
            error=error,
        ),
    )
    requeued = False
    if decision.action == "requeue":
        decision, requeued = _requeue(scheduler, paths, allocation, decision)
    if not requeued:
        write_verdict(paths, decision, cause=cause, attempt=attempt.number, step=end_step, error=error)
    with contextlib.suppress(ConnectionError):
        agreement.post(store, "decision", {"action": decision.action})
        _wait_until_gone(store, len(reports) - 1)
    return Conclusion(cause=cause, decision=decision, requeued=requeued)


def earlier_ends(paths: RunPaths, number: int) -> list[AttemptEnd]:
    """How every attempt before ``number`` ended, in order."""
    ends = read_ends(paths)
    return [
        AttemptEnd(cause=Cause(ends[each].cause), end_step=ends[each].end_step)
        for each in sorted(ends)
        if each < number
    ]


def record_silent_ends(paths: RunPaths, scheduler: Scheduler, attempt: Attempt) -> None:
    """Write down how older attempts ended that could not say so themselves."""
    ends = read_ends(paths)
    silent = [older for older in read_attempts(paths) if older.number < attempt.number and older.number not in ends]
    for older in silent:
        rows = scheduler.history(older.job_id)
        state = rows[older.slurm_restart_count].state if older.slurm_restart_count < len(rows) else None
        notice = last_notice(paths, older.number)
        cause = cause_policy.of_silence(state=state, notice=notice)
        why = "ended without a word; " + (
            f"a notice had come: {notice}" if notice else f"Slurm says {state}" if state else "and it came back"
        )
        record_end(
            paths,
            AttemptRecord(
                number=older.number,
                cause=cause,
                end_step=last_step(paths, older.number),
                ended_at=attempt.claimed_at,
                action="requeue",
                why=why,
            ),
        )


def write_verdict(
    paths: RunPaths, decision: Decision, *, cause: Cause, attempt: int, step: int | None, error: str
) -> None:
    """Write down that no further attempt follows, and why. This file, and no exit code, is the run's word."""
    state = {
        "done": RunState.FINISHED,
        "fail": RunState.FAILED,
        "cancel": RunState.CANCELLED,
        "requeue": RunState.STOPPED,
    }[decision.action]
    verdict = {"state": state, "cause": cause, "attempt": attempt, "step": step, "why": decision.why, "error": error}
    durable.replace_file(paths.verdict, json.dumps(verdict, indent=1).encode())


def _gather(store: Store, nodes: Sequence[int], deadline: float) -> list[NodeReport]:
    reports = []
    for index in nodes:
        with contextlib.suppress(ConnectionError):
            word = agreement.read(store, f"left/{index}", deadline - time.time())
            if word is not None:
                reports.append(NodeReport(**word))
    return reports


def _requeue(
    scheduler: Scheduler, paths: RunPaths, allocation: Allocation, decision: Decision
) -> tuple[Decision, bool]:
    """Put the job back into the queue: by scontrol here, or by the watcher in the batch shell where that fails."""
    request = paths.requeue_request(allocation.job_id, allocation.slurm_restart_count)
    deadline = time.monotonic() + REQUEUE_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            scheduler.requeue(allocation.job_id)
            return decision, True
        except RefusedError as error:
            why = f"Slurm refused to requeue job {allocation.job_id}: {error.why or error.what}"
            log.error("%s", why)
            return Decision(action="requeue", why=why), False
        except RlaunchError as error:
            log.warning("%s; asking the watcher in the batch shell", error)
        with contextlib.suppress(FileExistsError):
            durable.write_file(request, b"")
        if _vanishes(request, timeout_s=10.0):
            return decision, True
    return Decision(
        action="requeue", why=f"job {allocation.job_id} could not be requeued: Slurm does not answer"
    ), False


def _wait_until_gone(store: Store, num_others: int) -> None:
    """The store lives in this process: stay until all who reported have read the decision, for a moment at most."""
    deadline = time.monotonic() + FAREWELL_S
    while store.add("gone", 0) < num_others and time.monotonic() < deadline:
        time.sleep(0.02)


def _vanishes(request: Path, *, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if request.name not in {entry.name for entry in request.parent.iterdir()}:
            return True
        time.sleep(0.2)
    return False
