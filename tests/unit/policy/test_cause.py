import pytest

from resilient_launch.core.causes import Cause
from resilient_launch.policy.cause import of_reports, of_silence


@pytest.mark.parametrize(
    ("finished", "missing", "notice", "cause"),
    [
        ([True, True], 0, None, Cause.FINISHED),
        # The work was done before the notice could stop it.
        ([True, True], 0, Cause.PREEMPTED, Cause.FINISHED),
        ([False, False], 0, Cause.PREEMPTED, Cause.PREEMPTED),
        ([False, True], 0, Cause.TIME_LIMIT, Cause.TIME_LIMIT),
        ([True], 1, None, Cause.NODE_FAILURE),
        ([False], 1, None, Cause.NODE_FAILURE),
        ([False], 1, Cause.PREEMPTED, Cause.PREEMPTED),
        # Slurm signals what is left of a job that it requeues for a lost node.
        ([False], 1, Cause.YIELDED, Cause.NODE_FAILURE),
        ([False, False], 0, None, Cause.CRASH),
        ([True, False], 0, None, Cause.CRASH),
    ],
)
def test_cause_of_reports(finished: list[bool], missing: int, notice: Cause | None, cause: Cause) -> None:
    assert of_reports(finished=finished, num_missing=missing, notice=notice) is cause


@pytest.mark.parametrize(
    ("finished", "missing", "notice", "blamed", "cause"),
    [
        ([False, False], 0, None, [Cause.HANG], Cause.HANG),
        ([False, False], 0, None, [Cause.HANG, Cause.OUT_OF_MEMORY], Cause.OUT_OF_MEMORY),
        # The others hang, or fail, because one node is not fit.
        ([False, False], 0, None, [Cause.HANG, Cause.NODE_FAILURE], Cause.NODE_FAILURE),
        ([False], 1, None, [Cause.HANG], Cause.NODE_FAILURE),
        ([False, False], 0, Cause.PREEMPTED, [Cause.HANG], Cause.PREEMPTED),
        ([True, True], 0, None, [Cause.HANG], Cause.FINISHED),
    ],
)
def test_what_the_agents_know_comes_before_a_crash(
    finished: list[bool], missing: int, notice: Cause | None, blamed: list[Cause], cause: Cause
) -> None:
    assert of_reports(finished=finished, num_missing=missing, notice=notice, blamed=blamed) is cause


@pytest.mark.parametrize(
    ("state", "notice", "cause"),
    [
        ("PREEMPTED", None, Cause.PREEMPTED),
        ("TIMEOUT", None, Cause.TIME_LIMIT),
        ("NODE_FAIL", None, Cause.NODE_FAILURE),
        ("CANCELLED by 0", None, Cause.CANCELLED),
        ("OUT_OF_MEMORY", None, Cause.OUT_OF_MEMORY),
        ("REQUEUED", None, Cause.NODE_FAILURE),
        (None, None, Cause.NODE_FAILURE),
        (None, Cause.PREEMPTED, Cause.PREEMPTED),
        ("REQUEUED", Cause.TIME_LIMIT, Cause.TIME_LIMIT),
    ],
)
def test_cause_of_silence(state: str | None, notice: Cause | None, cause: Cause) -> None:
    assert of_silence(state=state, notice=notice) is cause
