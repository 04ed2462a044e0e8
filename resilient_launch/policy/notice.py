"""What a signal means, told from what Slurm says of the job at that moment."""

from __future__ import annotations

from collections.abc import Sequence

from resilient_launch.core.causes import Cause, Notice

SCAN_S = 90.0
"""Slurm sends the signal of ``--signal`` up to its scan period early: 60 s by the manual, and half a scan more."""
MAINTENANCE_SLACK_S = 120.0
"""A limit that was made to end before a window counts in Slurm's whole minutes, and starts when the nodes are free."""
DEFAULT_GRACE_S = 30.0
"""Time to save where nothing names a deadline: Slurm's KillWait and Kubernetes' grace period have the same default."""

_ENDINGS = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL"}


def classify(
    signal_name: str,
    *,
    now: float,
    job_state: str | None,
    preempt_time: float | None,
    end_time: float | None,
    kill_wait_s: float,
    signal_lead_s: float,
    job_reason: str = "",
    is_requeued: bool = False,
    preempts_at_once: bool = False,
    is_node_down: bool = False,
    maintenance_starts: Sequence[float] = (),
) -> Notice:
    """The notice that ``signal_name`` brings. All times are wall-clock seconds; None where Slurm does not say.

    A preemption shows PreemptTime, and EndTime is the end of the grace; a cancelled job is CANCELLED before its
    processes hear of it; a job at its limit is past EndTime, or within the signal's lead of it, and where a maintenance
    window of its nodes opens at that very time, that is why the limit is there. Anything else was sent by a person or a
    site's script: save and give the nodes back.

    A job whose processes are being ended is shown as COMPLETING, whatever will become of it: ``is_requeued`` (it has
    one restart more than this attempt) and ``job_reason`` then tell a requeue and the time limit from a cancel. Where
    the partition ``preempts_at_once``, without grace, the requeue is the only mark that a preemption leaves;
    and one of a job of which a node is down was Slurm's answer to that.
    """
    limit = Cause.TIME_LIMIT
    if end_time is not None and any(abs(start - end_time) <= MAINTENANCE_SLACK_S for start in maintenance_starts):
        limit = Cause.MAINTENANCE
    state = (job_state or "").split()[0].rstrip("+") if job_state else ""
    if state == "COMPLETING":
        if is_requeued:
            cause = Cause.PREEMPTED if preempts_at_once else Cause.YIELDED
            cause = Cause.NODE_FAILURE if is_node_down else cause
            return Notice(cause=cause, deadline=now + kill_wait_s, source=signal_name)
        state = _ENDINGS.get(job_reason, "CANCELLED")
    if state.startswith("CANCELLED"):
        return Notice(cause=Cause.CANCELLED, deadline=now + kill_wait_s, source=signal_name)
    if preempt_time is not None or state == "PREEMPTED":
        deadline = end_time if end_time is not None and end_time > now else now + kill_wait_s
        return Notice(cause=Cause.PREEMPTED, deadline=deadline, source=signal_name)
    if state == "NODE_FAIL":
        return Notice(cause=Cause.NODE_FAILURE, deadline=now + kill_wait_s, source=signal_name)
    if state == "TIMEOUT" or (end_time is not None and end_time <= now):
        return Notice(cause=limit, deadline=now + kill_wait_s, source=signal_name)
    if end_time is not None and end_time - now <= signal_lead_s + SCAN_S:
        return Notice(cause=limit, deadline=end_time, source=signal_name)
    return Notice(cause=Cause.YIELDED, deadline=now + DEFAULT_GRACE_S, source=signal_name)


def replaces(new: Notice, standing: Notice) -> bool:
    """Whether a later word takes the place of the one that stands.

    A cancel overrules everything, and takes a deadline where it had none; otherwise the first cause stands, unless the
    end has come nearer.
    """
    if standing.cause is Cause.CANCELLED:
        return standing.deadline is None and new.deadline is not None
    if new.cause is Cause.CANCELLED or standing.cause is Cause.YIELDED:
        return True
    if new.deadline is None or new.cause is Cause.YIELDED:
        return False
    return standing.deadline is None or new.deadline < standing.deadline - 1.0
