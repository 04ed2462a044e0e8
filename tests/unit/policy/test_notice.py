import pytest

from resilient_launch.core.causes import Cause
from resilient_launch.policy.notice import DEFAULT_GRACE_S, classify

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("signal", "state", "preempt_time", "end_time", "cause", "deadline"),
    [
        # The start of a preemption's grace: PreemptTime is set, EndTime is the end of the grace.
        ("SIGTERM", "RUNNING", NOW, NOW + 60, Cause.PREEMPTED, NOW + 60),
        # The same with send_user_signal: the signal does not matter.
        ("SIGUSR2", "RUNNING", NOW, NOW + 60, Cause.PREEMPTED, NOW + 60),
        # The second TERM, when the grace is over: KillWait is what remains.
        ("SIGTERM", "PREEMPTED", NOW - 60, NOW - 1, Cause.PREEMPTED, NOW + 5),
        # The signal of --signal, in time, and early by a scan period.
        ("SIGUSR2", "RUNNING", None, NOW + 120, Cause.TIME_LIMIT, NOW + 120),
        ("SIGUSR2", "RUNNING", None, NOW + 200, Cause.TIME_LIMIT, NOW + 200),
        # TERM at the limit itself.
        ("SIGTERM", "TIMEOUT", None, NOW - 1, Cause.TIME_LIMIT, NOW + 5),
        ("SIGTERM", "RUNNING", None, NOW - 1, Cause.TIME_LIMIT, NOW + 5),
        # scancel: the state comes before the signal.
        ("SIGTERM", "CANCELLED", None, NOW + 3600, Cause.CANCELLED, NOW + 5),
        ("SIGTERM", "CANCELLED by 1000", NOW, NOW + 3600, Cause.CANCELLED, NOW + 5),
        ("SIGTERM", "NODE_FAIL", None, NOW + 3600, Cause.NODE_FAILURE, NOW + 5),
        # A person or a site's script.
        ("SIGUSR1", "RUNNING", None, NOW + 3600, Cause.YIELDED, NOW + DEFAULT_GRACE_S),
        ("SIGUSR1", "RUNNING", None, None, Cause.YIELDED, NOW + DEFAULT_GRACE_S),
        # Slurm does not answer: the clock decides.
        ("SIGUSR2", None, None, NOW + 100, Cause.TIME_LIMIT, NOW + 100),
        ("SIGTERM", None, None, None, Cause.YIELDED, NOW + DEFAULT_GRACE_S),
    ],
)
def test_cause_and_deadline(
    signal: str, state: str | None, preempt_time: float | None, end_time: float | None, cause: Cause, deadline: float
) -> None:
    notice = classify(
        signal,
        now=NOW,
        job_state=state,
        preempt_time=preempt_time,
        end_time=end_time,
        kill_wait_s=5.0,
        signal_lead_s=120.0,
    )
    assert (notice.cause, notice.deadline, notice.source) == (cause, deadline, signal)


@pytest.mark.parametrize(
    ("reason", "is_requeued", "at_once", "is_node_down", "end_time", "cause"),
    [
        ("", False, False, False, NOW, Cause.CANCELLED),
        ("", False, True, True, NOW, Cause.CANCELLED),
        ("TimeLimit", False, False, False, NOW, Cause.TIME_LIMIT),
        ("NodeDown", False, False, False, NOW, Cause.NODE_FAILURE),
        ("", True, False, False, None, Cause.YIELDED),
        ("", True, True, False, None, Cause.PREEMPTED),
        ("", True, True, True, None, Cause.NODE_FAILURE),
    ],
)
def test_a_completing_job_is_told_by_reason_and_restarts(
    reason: str, is_requeued: bool, at_once: bool, is_node_down: bool, end_time: float | None, cause: Cause
) -> None:
    """Slurm shows COMPLETING for a job being cancelled, at its limit, or on its way back to the queue alike."""
    notice = classify(
        "SIGTERM",
        now=NOW,
        job_state="COMPLETING",
        preempt_time=None,
        end_time=end_time,
        kill_wait_s=5.0,
        signal_lead_s=120.0,
        job_reason=reason,
        is_requeued=is_requeued,
        preempts_at_once=at_once,
        is_node_down=is_node_down,
    )
    assert (notice.cause, notice.deadline) == (cause, NOW + 5)


@pytest.mark.parametrize(
    ("start", "cause"),
    [(NOW + 120, Cause.MAINTENANCE), (NOW + 200, Cause.MAINTENANCE), (NOW + 600, Cause.TIME_LIMIT)],
)
def test_a_limit_in_front_of_a_maintenance_window(start: float, cause: Cause) -> None:
    def cause_of(state: str, end_time: float, preempt_time: float | None = None) -> Cause:
        return classify(
            "SIGUSR2",
            now=NOW,
            job_state=state,
            preempt_time=preempt_time,
            end_time=end_time,
            kill_wait_s=5.0,
            signal_lead_s=120.0,
            maintenance_starts=[start],
        ).cause

    assert cause_of("RUNNING", NOW + 120) is cause
    assert cause_of("RUNNING", NOW + 120, preempt_time=NOW) is Cause.PREEMPTED
    assert cause_of("RUNNING", NOW + 7200) is Cause.YIELDED
