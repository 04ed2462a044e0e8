"""What follows the end of an attempt: budgets, progress, the same step again, checkpoints that lead nowhere."""

import pytest

from resilient_launch.core.causes import Cause
from resilient_launch.policy.requeue import AttemptEnd, Decision, Life, Limits, decide, passed_over, stuck_at

LIMITS = Limits(max_failures=3, same_step=3)


def end(cause: Cause, step: int | None = 0, saved: int | None = None) -> AttemptEnd:
    return AttemptEnd(cause=cause, end_step=step, saved_step=saved)


def after(last: AttemptEnd, *earlier: AttemptEnd, limits: Limits = LIMITS) -> Decision:
    return decide(last, earlier, limits=limits)


def life(
    step: int | None, start: str | None = None, *, resume: int = 0, saved: bool = False, failed: bool = True
) -> Life:
    return Life(
        attempt=0,
        restart=0,
        checkpoint=start,
        resume_step=resume,
        end_step=step,
        has_saved=saved,
        has_failed=failed,
    )


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.TIME_LIMIT, Cause.MAINTENANCE, Cause.YIELDED])
def test_a_hundred_interruptions_use_no_budget(cause: Cause) -> None:
    assert after(end(cause, 10), *[end(cause, 10)] * 100, limits=Limits(max_failures=0)).action == "requeue"


@pytest.mark.parametrize("cause", [Cause.CRASH, Cause.HANG, Cause.OUT_OF_MEMORY, Cause.NODE_FAILURE])
def test_the_same_failure_without_progress_stops(cause: Cause) -> None:
    failure = end(cause, 50)
    third = after(failure, failure, failure)
    assert (third.action, third.num_failures) == ("requeue", 3)
    assert after(failure, failure, failure, failure).action == "fail"


def test_interruptions_between_failures_do_not_hide_a_crash_loop() -> None:
    crash = end(Cause.CRASH, 50)
    assert after(crash, crash, end(Cause.PREEMPTED, 40), crash, end(Cause.TIME_LIMIT, 30), crash).action == "fail"


def test_a_hundred_new_steps_give_every_budget_back() -> None:
    crashes = [end(Cause.CRASH, 50)] * 3
    assert after(end(Cause.CRASH, 149), *crashes).action == "requeue"
    assert after(end(Cause.CRASH, 99), *crashes).action == "fail"
    # New ground is measured against the best so far, and a lost checkpoint gives nothing back.
    assert after(end(Cause.CRASH, 149), end(Cause.PREEMPTED, 100), *crashes).action == "fail"


def test_a_new_checkpoint_gives_every_budget_back() -> None:
    crashes = [end(Cause.CRASH, 50, 40)] * 4
    assert after(end(Cause.CRASH, 55, 50), *crashes[1:]).num_failures == 1
    assert after(end(Cause.CRASH, 55, 40), *crashes[1:]).action == "fail"


def test_each_cause_has_its_own_budget() -> None:
    assert after(end(Cause.CRASH, 50), *[end(Cause.NODE_FAILURE, 50)] * 3).num_failures == 1


def test_a_user_error_before_any_step_stops_at_once_and_later_does_not() -> None:
    wrong = "rank 0 raised ImportError: no such thing"
    decision = decide(end(Cause.CRASH, None), [], limits=LIMITS, user_error=wrong)
    assert decision.action == "fail"
    assert wrong in decision.why
    # After steps of the same run it can only be the machine.
    assert (
        decide(end(Cause.CRASH, None), [end(Cause.PREEMPTED, 9)], limits=LIMITS, user_error=wrong).action == "requeue"
    )
    assert decide(end(Cause.PREEMPTED, None), [], limits=LIMITS, user_error=wrong).action == "requeue"


def test_a_request_to_stop_is_obeyed_unless_the_work_is_done() -> None:
    assert decide(end(Cause.CANCELLED, 5), [], limits=LIMITS, stop_requested=True).action == "stop"
    assert decide(end(Cause.PREEMPTED, 5), [], limits=LIMITS, stop_requested=True).action == "stop"
    assert decide(end(Cause.FINISHED, 5), [], limits=LIMITS, stop_requested=True).action == "done"


def test_the_same_step_three_times_in_a_row_stops() -> None:
    lives = [life(50), life(50, "c40", resume=40), life(50, "c40", resume=40)]
    assert "step 50" in stuck_at(lives, ["c40", "c30"], limits=LIMITS)
    assert decide(end(Cause.CRASH, 50), [], limits=LIMITS, lives=lives, checkpoints=["c40"]).action == "fail"
    assert not stuck_at(lives[1:], ["c40"], limits=LIMITS)
    assert not stuck_at([*lives[:2], life(51, "c40")], ["c40"], limits=LIMITS)


def test_interruptions_at_the_same_step_do_not_count() -> None:
    interrupted = life(50, "c40", failed=False)
    assert not stuck_at([life(50), interrupted, interrupted], ["c40"], limits=LIMITS)
    assert stuck_at([life(50), interrupted, life(50), interrupted, life(50)], ["c40"], limits=LIMITS)


def test_ranks_that_never_began_to_step_are_a_matter_of_the_budget() -> None:
    assert not stuck_at([life(None)] * 5, [], limits=LIMITS)


def test_a_checkpoint_that_leads_nowhere_is_passed_over_for_an_older_one() -> None:
    nowhere = life(310, "c300", resume=300)
    lives = [life(305, saved=True, failed=False), nowhere, nowhere]
    assert passed_over(lives, ["c300", "c200"], limits=LIMITS) == frozenset()
    assert passed_over([*lives, nowhere], ["c300", "c200"], limits=LIMITS) == {"c300"}
    # That may be the cure: not stuck yet. When the older one ends there too, it is not the checkpoint.
    assert not stuck_at([*lives, nowhere], ["c300", "c200"], limits=LIMITS)
    assert stuck_at([*lives, nowhere, life(310, "c200", resume=200)], ["c300", "c200"], limits=LIMITS)


def test_the_last_checkpoint_is_never_passed_over() -> None:
    assert passed_over([life(310, "c300", resume=300)] * 3, ["c300"], limits=LIMITS) == frozenset()
    assert stuck_at([life(310, "c300", resume=300)] * 3, ["c300"], limits=LIMITS)


@pytest.mark.parametrize("lucky", [life(400, "c300", resume=300), life(310, "c300", resume=300, saved=True)])
def test_a_checkpoint_that_led_somewhere_once_counts_anew(lucky: Life) -> None:
    nowhere = life(311, "c300", resume=300)
    lives = [nowhere, nowhere, lucky, nowhere, nowhere]
    assert passed_over(lives, ["c300", "c200"], limits=LIMITS) == frozenset()
    assert passed_over([*lives, nowhere], ["c300", "c200"], limits=LIMITS) == {"c300"}
