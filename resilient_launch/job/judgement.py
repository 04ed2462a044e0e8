"""What an attempt's end means for the run, from the nodes' reports or from what a silent end left, and what to wish."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence

from resilient_launch.cluster.base import Scheduler
from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core.causes import Cause, Notice
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import (
    FINAL_ACTIONS,
    Attempt,
    AttemptRecord,
    last_notice,
    last_saved_step,
    last_step,
    read_attempts,
    read_ends,
    record_end,
)
from resilient_launch.job.context import Allocation
from resilient_launch.job.control import ControlRequest
from resilient_launch.job.failures import NodeReport, checkpoint_names, limits_of
from resilient_launch.job.lives import read_lives
from resilient_launch.job.requeue import Wish, excludable
from resilient_launch.job.site_history import note_attempt
from resilient_launch.policy import backoff
from resilient_launch.policy import cause as cause_policy
from resilient_launch.policy.requeue import NO_BUDGET, AttemptEnd, Decision, decide
from resilient_launch.policy.suspects import Blame, suspects

log = logging.getLogger("rlaunch.agent")
_NOTHING_TO_BLAME = frozenset({*NO_BUDGET, Cause.FINISHED, Cause.CANCELLED})


def judge(
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
            suspects=_suspects(cause, missing, reports),
            possible_suspect=failed.node if failed and failed.may_be_machine and cause is Cause.CRASH else "",
            not_before=now + wait_s if wait_s else 0.0,
        ),
        decision,
    )


def _suspects(cause: Cause, missing: Sequence[str], reports: Sequence[NodeReport]) -> tuple[str, ...]:
    """Nodes that are certainly at fault, if that is why the attempt ended: silent, not fit, or slower than all others.

    Told of every node, it says nothing of any.
    """
    named = tuple(dict.fromkeys(node for each in reports for node in each.suspects))
    if cause is Cause.NODE_FAILURE:
        return (*missing, *(node for node in named if node not in missing))
    return named if cause is Cause.YIELDED else ()


def _user_error(reports: Sequence[NodeReport], failed: NodeReport | None) -> str:
    """The error that every attempt would meet; an ordinary exception has to come from every rank of the gang."""
    if failed is None or not failed.user_error:
        return ""
    is_common = all(each.every_rank_failed for each in reports)
    return failed.user_error if is_common or not failed.every_rank_failed else ""


def wish_of(
    scheduler: Scheduler, config: LaunchConfig, paths: RunPaths, record: AttemptRecord, request: ControlRequest | None
) -> Wish:
    if request is not None:
        return Wish(held=request.held, not_before=request.begin or 0.0)
    exclude: list[str] = []
    if (record.cause not in _NOTHING_TO_BLAME or record.suspects) and config.restart.exclude_nodes:
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


def record_silent_ends(config: LaunchConfig, paths: RunPaths, scheduler: Scheduler, attempt: Attempt) -> None:
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
        record = AttemptRecord(
            number=older.number,
            cause=cause,
            end_step=last_step(paths, older.number),
            saved_step=last_saved_step(paths, older.number),
            ended_at=attempt.claimed_at,
            action="requeue",
            why=why,
            # Whoever else fell silent, the first node's agent did: it could have said so.
            suspects=older.nodes[:1] if cause is Cause.NODE_FAILURE else (),
        )
        record_end(paths, record)
        if config.checkpoint.failure_history is not None:
            note_attempt(config.checkpoint.failure_history, paths, older, record)


def judge_silence(config: LaunchConfig, paths: RunPaths, attempt: Attempt) -> Decision | None:
    """What would have been decided after the attempt before this one, if it ended without a word; None if it did not.

    Slurm brings a job back after a lost node however often that happens; somebody has to count.
    """
    end = read_ends(paths).get(attempt.number - 1)
    if end is None or end.ended_at != attempt.claimed_at:
        return None
    ends = earlier_ends(paths, attempt.number)
    lives = read_lives(paths, until=(attempt.number, 0))
    return decide(ends[-1], ends[:-1], limits=limits_of(config), lives=lives, checkpoints=checkpoint_names(paths))
