import pytest

from resilient_launch.core.causes import Cause
from resilient_launch.policy.requeue import AttemptEnd, decide


def end(cause: Cause, step: int | None = 0) -> AttemptEnd:
    return AttemptEnd(cause=cause, end_step=step)


@pytest.mark.parametrize(
    ("cause", "action"),
    [
        (Cause.FINISHED, "done"),
        (Cause.CANCELLED, "cancel"),
        (Cause.PREEMPTED, "requeue"),
        (Cause.TIME_LIMIT, "requeue"),
        (Cause.MAINTENANCE, "requeue"),
        (Cause.YIELDED, "requeue"),
        (Cause.NODE_FAILURE, "requeue"),
        (Cause.HANG, "requeue"),
        (Cause.CRASH, "requeue"),
        (Cause.OUT_OF_MEMORY, "requeue"),
    ],
)
def test_first_end_of_each_cause(cause: Cause, action: str) -> None:
    assert decide(end(cause), [], max_failures=3).action == action


def test_a_hundred_preemptions_use_no_budget() -> None:
    earlier = [end(Cause.PREEMPTED, 10)] * 100
    assert decide(end(Cause.PREEMPTED, 10), earlier, max_failures=0).action == "requeue"


def test_the_same_failure_without_progress_stops() -> None:
    crash = end(Cause.CRASH, 50)
    assert decide(crash, [crash, crash], max_failures=3).action == "requeue"
    assert decide(crash, [crash, crash, crash], max_failures=3).action == "fail"


def test_preemptions_between_failures_do_not_hide_a_crash_loop() -> None:
    crash = end(Cause.CRASH, 50)
    earlier = [crash, end(Cause.PREEMPTED, 40), crash, end(Cause.TIME_LIMIT, 30), crash]
    assert decide(crash, earlier, max_failures=3).action == "fail"


def test_progress_gives_the_budget_back() -> None:
    earlier = [end(Cause.CRASH, step) for step in (50, 60, 70)]
    assert decide(end(Cause.CRASH, 80), earlier, max_failures=3).action == "requeue"


def test_each_cause_has_its_own_budget() -> None:
    earlier = [end(Cause.NODE_FAILURE, 50)] * 3
    assert decide(end(Cause.CRASH, 50), earlier, max_failures=3).action == "requeue"
