"""What a signal means, told from what Slurm says of the job at that moment."""

from __future__ import annotations

from resilient_launch.core.causes import Cause, Notice

SCAN_S = 90.0
"""Slurm sends the signal of ``--signal`` up to its scan period early: 60 s by the manual, and half a scan more."""
DEFAULT_GRACE_S = 30.0
"""Time to save where nothing names a deadline: Slurm's KillWait and Kubernetes' grace period have the same default."""


def classify(
    signal_name: str,
    *,
    now: float,
    job_state: str | None,
    reason: str = "",
    was_requeued: bool = False,
    preempt_time: float | None,
    end_time: float | None,
    kill_wait_s: float,
    signal_lead_s: float,
) -> Notice:
    """The notice that ``signal_name`` brings. All times are wall-clock seconds; None where Slurm does not say.

    ``was_requeued`` says that Slurm counts more restarts than this attempt's own. A preemption shows PreemptTime, and
    EndTime is the end of its grace; a job near its limit is within the signal's lead of EndTime. While the processes of
    an ended job are still there its state is COMPLETING, whatever ended it. The ends were seen to differ on 22.05: a
    requeued job has one restart more, one at its limit has the reason TimeLimit, a cancelled one has nothing but an
    EndTime that is past. Any other signal was sent by a person or a site's script: save and give the nodes back.
    """
    state = (job_state or "").split(" ")[0].rstrip("+")
    soon = now + kill_wait_s
    if state == "CANCELLED":
        return Notice(cause=Cause.CANCELLED, deadline=soon, source=signal_name)
    if preempt_time is not None or state == "PREEMPTED":
        deadline = end_time if end_time is not None and end_time > now else soon
        return Notice(cause=Cause.PREEMPTED, deadline=deadline, source=signal_name)
    if was_requeued:
        return Notice(cause=Cause.YIELDED, deadline=soon, source=signal_name)
    if state == "NODE_FAIL" or reason == "NodeDown":
        return Notice(cause=Cause.NODE_FAILURE, deadline=soon, source=signal_name)
    if state == "TIMEOUT" or reason == "TimeLimit":
        return Notice(cause=Cause.TIME_LIMIT, deadline=soon, source=signal_name)
    if end_time is not None and end_time <= now:
        cause = Cause.CANCELLED if state == "COMPLETING" else Cause.TIME_LIMIT
        return Notice(cause=cause, deadline=soon, source=signal_name)
    if end_time is not None and end_time - now <= signal_lead_s + SCAN_S:
        return Notice(cause=Cause.TIME_LIMIT, deadline=end_time, source=signal_name)
    return Notice(cause=Cause.YIELDED, deadline=now + DEFAULT_GRACE_S, source=signal_name)
