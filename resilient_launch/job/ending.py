"""The end, in order: ranks leave, nodes report, the first node decides, writes it down, and requeues last."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from resilient_launch.cluster.base import Scheduler
from resilient_launch.cluster.hostlist import expand
from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core import durable
from resilient_launch.core.causes import Cause, Notice, RunState
from resilient_launch.core.errors import RlaunchError
from resilient_launch.core.paths import RunPaths
from resilient_launch.job import agreement, control
from resilient_launch.job.attempt import (
    Attempt,
    AttemptRecord,
    read_attempts,
    read_ends,
    record_end,
)
from resilient_launch.job.context import Allocation
from resilient_launch.job.control import ControlRequest
from resilient_launch.job.failures import NodeReport
from resilient_launch.job.judgement import judge, wish_of
from resilient_launch.job.requeue import Return, come_back
from resilient_launch.job.site_history import note_attempt
from resilient_launch.policy import notice as notice_policy
from resilient_launch.policy.requeue import Decision

if TYPE_CHECKING:
    from torch.distributed import Store

log = logging.getLogger("rlaunch.agent")
Classifier = Callable[[str], Notice]
RESERVE_S = 2.0
REPORTS_TIMEOUT_S = 60.0
FAREWELL_S = 3.0


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
        is_requeued = view is not None and (view.restart_count or 0) > allocation.slurm_restart_count
        return notice_policy.classify(
            signal_name,
            now=time.time(),
            job_state=view.state if view else None,
            preempt_time=view.preempt_time if view else None,
            end_time=view.end_time if view else allocation.end_time,
            kill_wait_s=kill_wait_s,
            signal_lead_s=signal_lead_s,
            job_reason=view.reason if view else "",
            is_requeued=is_requeued,
            is_node_down=is_requeued and _is_node_down(scheduler, allocation),
            preempts_at_once=view is not None and is_requeued and _preempts_at_once(scheduler, view.partition),
            maintenance_starts=_maintenance_starts(scheduler, allocation) if view else (),
        )

    return classify


def _is_node_down(scheduler: Scheduler, allocation: Allocation) -> bool:
    """Whether Slurm has given up one of the gang's nodes."""
    with contextlib.suppress(RlaunchError):
        states = scheduler.nodes()
        return any(states.get(node, "").startswith("down") for node in allocation.nodes)
    return False


def _preempts_at_once(scheduler: Scheduler, partition: str) -> bool:
    """Whether jobs of the partition are requeued for others without any grace."""
    with contextlib.suppress(RlaunchError):
        mode = scheduler.partition_setting(partition, "PreemptMode") or ""
        return "REQUEUE" in mode and scheduler.partition_setting(partition, "GraceTime") == "0"
    return False


def _maintenance_starts(scheduler: Scheduler, allocation: Allocation) -> list[float]:
    """When windows open in which this gang's nodes go down for maintenance."""
    nodes = set(allocation.nodes)
    with contextlib.suppress(RlaunchError):
        found = [each for each in scheduler.reservations() if each.is_maintenance]
        return [float(each.start_time) for each in found if nodes & set(expand(each.nodes))]
    return []


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
    config: LaunchConfig,
    paths: RunPaths,
    allocation: Allocation,
    attempt: Attempt,
    report: NodeReport,
    standing_notice: Callable[[], Notice | None],
    request: ControlRequest | None,
) -> Conclusion:
    """On the first node: gather the reports, decide, write it down, requeue, and tell the others.

    ``request`` is the yield or stop that was asked for, if one was. ``standing_notice`` is asked again once all nodes
    have reported: another node's signal may have come meanwhile.
    """
    deadline = time.time() + REPORTS_TIMEOUT_S
    notice = standing_notice()
    if notice is not None and notice.deadline is not None:
        deadline = min(deadline, notice.deadline - reserve_s(notice) / 2)
    reports = [report, *_gather(store, range(1, allocation.num_nodes), deadline)]
    notice = standing_notice()
    record, decision = judge(config, paths, allocation, attempt, reports, notice, request)
    cause, end_step, error = Cause(record.cause), record.end_step, record.error
    log.info("attempt %d: %s at step %s: %s (%s)", attempt.number, cause, end_step, decision.action, decision.why)
    record_end(paths, record)
    is_superseded = any(other.number > attempt.number for other in read_attempts(paths))
    outcome = Return(comes_back=False)
    if is_superseded:
        # Slurm took this node for lost and started the run elsewhere: what becomes of it is the newer attempt's word.
        log.warning("attempt %d has been replaced: it neither requeues nor gives a verdict", attempt.number)
    elif decision.action == "requeue":
        outcome = come_back(scheduler, paths, allocation, wish_of(scheduler, config, paths, record, request))
        decision = replace(decision, why="; ".join(filter(None, (decision.why, outcome.why))))
    if not outcome.comes_back and not is_superseded:
        write_verdict(
            paths,
            decision,
            cause=cause,
            attempt=attempt.number,
            step=end_step,
            error=error,
            is_resubmittable=outcome.is_resubmittable,
        )
    control.clear(paths, attempt.number, is_final=not outcome.comes_back and not is_superseded)
    with contextlib.suppress(ConnectionError):
        agreement.post(store, "decision", {"action": decision.action})
        _wait_until_gone(store, len(reports) - 1)
    if config.checkpoint.failure_history is not None:
        # Last, because storage that hangs must hold up nobody.
        note_attempt(config.checkpoint.failure_history, paths, attempt, record)
    return Conclusion(cause=cause, decision=decision, requeued=outcome.comes_back)


def give_up(
    scheduler: Scheduler, paths: RunPaths, allocation: Allocation, attempt: Attempt, decision: Decision
) -> None:
    """End an attempt before its training starts: the verdict is written, and Slurm ends every node's part."""
    end = read_ends(paths)[attempt.number - 1]
    cause = Cause(end.cause)
    record = AttemptRecord(
        number=attempt.number,
        cause=cause,
        end_step=end.end_step,
        ended_at=time.time(),
        action=decision.action,
        why=decision.why,
    )
    record_end(paths, record)
    write_verdict(paths, decision, cause=cause, attempt=attempt.number, step=end.end_step, error="")
    log.error("giving up: %s", decision.why)
    with contextlib.suppress(RlaunchError):
        scheduler.cancel(allocation.job_id)


def write_verdict(
    paths: RunPaths,
    decision: Decision,
    *,
    cause: Cause,
    attempt: int,
    step: int | None,
    error: str,
    is_resubmittable: bool = False,
) -> None:
    """Write down that no further attempt follows, and why. This file, and no exit code, is the run's word.

    ``is_resubmittable`` says that the run would go on if somebody who can reach sbatch submitted its job again.
    """
    state = {
        "done": RunState.FINISHED,
        "fail": RunState.FAILED,
        "cancel": RunState.CANCELLED,
        "stop": RunState.STOPPED,
        "requeue": RunState.STOPPED,
    }[decision.action]
    verdict = {
        "state": state,
        "cause": cause,
        "attempt": attempt,
        "step": step,
        "why": decision.why,
        "hint": decision.hint,
        "error": error,
        "is_resubmittable": is_resubmittable,
    }
    durable.replace_file(paths.verdict, json.dumps(verdict, indent=1).encode())


def _gather(store: Store, nodes: Sequence[int], deadline: float) -> list[NodeReport]:
    reports = []
    for index in nodes:
        with contextlib.suppress(ConnectionError):
            word = agreement.read(store, f"left/{index}", deadline - time.time())
            if word is not None:
                blame = Cause(word["blame"]) if word.get("blame") else None
                reports.append(NodeReport(**{**word, "blame": blame, "suspects": tuple(word.get("suspects", ()))}))
    return reports


def _wait_until_gone(store: Store, num_others: int) -> None:
    """The store lives in this process: stay until all who reported have read the decision, for a moment at most."""
    deadline = time.monotonic() + FAREWELL_S
    while store.add("gone", 0) < num_others and time.monotonic() < deadline:
        time.sleep(0.02)
