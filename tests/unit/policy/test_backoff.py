import pytest

from resilient_launch.policy.backoff import delay_s


@pytest.mark.parametrize(("failures", "whole"), [(0, 0), (1, 10), (2, 20), (3, 40), (6, 320), (7, 600), (10**6, 600)])
def test_doubles_up_to_the_cap(failures: int, whole: float) -> None:
    assert delay_s(failures, base_s=10, cap_s=600, jitter=1.0) == whole
    assert delay_s(failures, base_s=10, cap_s=600, jitter=0.0) == whole / 2


def test_jobs_that_failed_together_come_back_apart() -> None:
    assert len({delay_s(1, base_s=10, cap_s=600, jitter=jitter / 7) for jitter in range(8)}) == 8


def test_no_base_is_no_wait() -> None:
    assert delay_s(5, base_s=0, cap_s=600, jitter=1.0) == 0
