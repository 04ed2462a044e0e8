"""The end, in order: ranks leave, nodes report, the first node decides, writes it down, and requeues last."""

from __future__ import annotations

import contextlib
import json
import logging
import random
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
    FINAL_ACTIONS,
    Attempt,
    AttemptRecord,
    last_notice,
    last_step,
    read_attempts,
    read_ends,
    record_end,
)
from resilient_launch.job.context import Allocation
from resilient_launch.job.control import ControlRequest
from resilient_launch.job.failures import checkpoint_names, limits_of
from resilient_launch.job.lives import read_lives
from resilient_launch.job.requeue import Return, Wish, come_back, excludable
from resilient_launch.policy import backoff
from resilient_launch.policy import cause as cause_policy
from resilient_launch.policy import notice as notice_policy
from resilient_launch.policy.requeue import NO_BUDGET, AttemptEnd, Decision, decide
from resilient_launch.policy.suspects import Blame, suspects

if TYPE_CHECKING:
    from torch.distributed import Store

log = logging.getLogger("rlaunch.agent")
Classifier = Callable[[str], Notice]
RESERVE_S = 2.0
REPORTS_TIMEOUT_S = 60.0
FAREWELL_S = 3.0
_NOTHING_TO_BLAME = frozenset({*NO_BUDGET, Cause.FINISHED, Cause.CANCELLED})


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """How one node's part of an attempt ended. Steps are counts of completed ones.

    ``first_rank`` failed first on this node, at ``failed_at``; ``error`` is what it had to say, ``may_be_machine``
    whether the node can be at fault, ``user_error`` why it would come back for certain. ``blame`` is the cause where
    the node's agent knows more than that its workers failed.
    """

    node: str
    finished: bool
    end_step: int | None
    saved_step: int | None
    first_rank: int | None
    error: str
    failed_at: float | None = None
    may_be_machine: bool = False
    user_error: str = ""
    every_rank_failed: bool = False
    blame: Cause | None = None


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
            maintenance_starts=_maintenance_starts(scheduler, allocation) if view else (),
        )

    return classify


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
    record, decision = _judge(config, paths, allocation, attempt, reports, notice, request)
    cause, end_step, error = Cause(record.cause), record.end_step, record.error
    log.info("attempt %d: %s at step %s: %s (%s)", attempt.number, cause, end_step, decision.action, decision.why)
    record_end(paths, record)
    outcome = Return(comes_back=False)
    if decision.action == "requeue":
        outcome = come_back(scheduler, paths, allocation, _wish(scheduler, config, paths, record, request))
        decision = replace(decision, why="; ".join(filter(None, (decision.why, outcome.why))))
    if not outcome.comes_back:
        write_verdict(
            paths,
            decision,
            cause=cause,
            attempt=attempt.number,
            step=end_step,
            error=error,
            is_resubmittable=outcome.is_resubmittable,
        )
    control.clear(paths, attempt.number, is_final=not outcome.comes_back)
    with contextlib.suppress(ConnectionError):
        agreement.post(store, "decision", {"action": decision.action})
        _wait_until_gone(store, len(reports) - 1)
    return Conclusion(cause=cause, decision=decision, requeued=outcome.comes_back)


def _judge(
    config: LaunchConfig,
    paths: RunPaths,
    allocation: Allocation,
    attempt: Attempt,
    reports: Sequence[NodeReport],
    notice: Notice | None,
    request: ControlRequest | None,
) -> tuple[AttemptRecord, Decision]:
    """What happened, and what follows, from what the nodes said."""
    missing = tuple(node for node in allocation.nodes if node not in {each.node for each in reports})
    cause = cause_policy.of_reports(
        finished=[each.finished for each in reports],
        num_missing=len(missing),
        notice=notice.cause if notice else None,
        blamed=[each.blame for each in reports if each.blame is not None],
    )
    # The failure that came first, whichever node reported first.
    failed = min(
        (each for each in reports if each.first_rank is not None),
        key=lambda each: (each.may_be_machine, each.failed_at or 0.0),
        default=None,
    )
    explained = next((each for each in reports if each.blame is cause), failed if cause is Cause.CRASH else None)
    steps = [each.end_step for each in reports if each.end_step is not None]
    saves = [each.saved_step for each in reports if each.saved_step is not None]
    end = AttemptEnd(cause=cause, end_step=max(steps, default=None), saved_step=max(saves, default=None))
    decision = decide(
        end,
        earlier_ends(paths, attempt.number),
        limits=limits_of(config),
        lives=read_lives(paths, until=(attempt.number + 1, 0)) if cause not in _NOTHING_TO_BLAME else (),
        checkpoints=checkpoint_names(paths),
        user_error=_user_error(reports, failed),
        stop_requested=request is not None and request.kind == "stop",
    )
    wait_s = backoff.delay_s(
        decision.num_failures if decision.action == "requeue" else 0,
        base_s=config.restart.backoff_s,
        cap_s=config.restart.backoff_max_s,
        jitter=random.random(),
    )
    now = time.time()
    return (
        AttemptRecord(
            number=attempt.number,
            cause=cause,
            end_step=end.end_step,
            saved_step=end.saved_step,
            ended_at=now,
            action=decision.action,
            why=decision.why,
            first_rank=failed.first_rank if failed else None,
            error=explained.error if explained else "",
            suspects=missing if cause is Cause.NODE_FAILURE else (),
            possible_suspect=failed.node if failed and failed.may_be_machine and cause is Cause.CRASH else "",
            not_before=now + wait_s if wait_s else 0.0,
        ),
        decision,
    )


def _user_error(reports: Sequence[NodeReport], failed: NodeReport | None) -> str:
    """The error that every attempt would meet; an ordinary exception has to come from every rank of the gang."""
    if failed is None or not failed.user_error:
        return ""
    is_common = all(each.every_rank_failed for each in reports)
    return failed.user_error if is_common or not failed.every_rank_failed else ""


def _wish(
    scheduler: Scheduler, config: LaunchConfig, paths: RunPaths, record: AttemptRecord, request: ControlRequest | None
) -> Wish:
    if request is not None:
        return Wish(held=request.held, not_before=request.begin or 0.0)
    exclude: list[str] = []
    if record.cause not in _NOTHING_TO_BLAME and config.restart.exclude_nodes:
        blames = [
            Blame(ended_at=each.ended_at, certain=tuple(each.suspects), possible=each.possible_suspect)
            for _, each in sorted(read_ends(paths).items())
        ]
        if nodes := suspects(blames, now=time.time()):
            asked = dict(config.sbatch).get("exclude", "")
            exclude = excludable(
                scheduler, nodes, asked=str(asked), partition=config.partition or "", num_nodes=config.nodes.min
            )
            log.warning("suspect nodes: %s; the next attempt stays away from: %s", nodes, exclude or "none")
    return Wish(not_before=record.not_before, exclude=tuple(exclude))


def earlier_ends(paths: RunPaths, number: int) -> list[AttemptEnd]:
    """How every attempt before ``number`` ended, in order, since the last end that was a verdict.

    Whoever submitted the run again after a verdict has looked at it: the budgets are whole again.
    """
    ends = read_ends(paths)
    found: list[AttemptEnd] = []
    for each in sorted(ends):
        if each < number:
            end = ends[each]
            found.append(AttemptEnd(cause=Cause(end.cause), end_step=end.end_step, saved_step=end.saved_step))
            if end.action in FINAL_ACTIONS:
                found.clear()
    return found


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
                # Whoever else fell silent, the first node's agent did: it could have said so.
                suspects=older.nodes[:1] if cause is Cause.NODE_FAILURE else (),
            ),
        )


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
                reports.append(NodeReport(**{**word, "blame": blame}))
    return reports


def _wait_until_gone(store: Store, num_others: int) -> None:
    """The store lives in this process: stay until all who reported have read the decision, for a moment at most."""
    deadline = time.monotonic() + FAREWELL_S
    while store.add("gone", 0) < num_others and time.monotonic() < deadline:
        time.sleep(0.02)
