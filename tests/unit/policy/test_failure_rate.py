"""The posterior of a failure rate, against closed forms and a table."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.core.errors import UsageError
from resilient_launch.policy.failure_rate import Rate, mtbf_of_nodes_s, notice_share


@pytest.mark.parametrize(
    ("num_gpus", "hours"),
    [(16_384, "1.80"), (131_072, "0.23")],
)
def test_mtbf_of_many_nodes(num_gpus: int, hours: str) -> None:
    assert f"{mtbf_of_nodes_s(num_gpus // 8, 6.5) / 3600:.2f}" == hours


def test_llama_3_by_its_own_rate() -> None:
    rate = 419 / 54 / 2048 * 1000
    assert f"{rate:.2f}" == "3.79"
    assert f"{mtbf_of_nodes_s(2048, rate) / 3600:.2f}" == "3.09"


def test_running_time_counts_and_the_prior_fades() -> None:
    prior = Rate.prior(3600.0)
    assert prior.mtbf_s == 3600
    assert prior.observed(0, 3600).mtbf_s == 7200
    assert prior.observed(99, 99 * 100.0).mtbf_s == pytest.approx((3600 + 9900) / 100)


def test_quantiles() -> None:
    # One event is an exponential distribution; ten are half a chi-squared of twenty degrees.
    one, ten = Rate(events=1, exposure_s=2), Rate(events=10, exposure_s=1)
    assert one.quantile(0.5) == pytest.approx(math.log(2) / 2, rel=1e-9)
    assert ten.quantile(0.05) == pytest.approx(10.8508 / 2, rel=1e-5)
    assert ten.quantile(0.95) == pytest.approx(31.4104 / 2, rel=1e-5)
    low_s, high_s = ten.mtbf_range_s(0.9)
    assert (low_s, high_s) == (pytest.approx(2 / 31.4104, rel=1e-5), pytest.approx(2 / 10.8508, rel=1e-5))


@given(events=st.floats(0.01, 1e5), share=st.floats(0.01, 0.99))
def test_quantiles_rise(events: float, share: float) -> None:
    rate = Rate(events=events, exposure_s=1)
    assert 0 < rate.quantile(share) <= rate.quantile(min(share + 0.005, 0.999))


def test_notice_is_not_trusted_before_it_is_seen() -> None:
    assert notice_share(0, 0) == 0
    assert notice_share(3, 3) == 0.75
    assert notice_share(0, 0, prior=0.6) == 0.6


@pytest.mark.parametrize(("nodes", "rate"), [(0, 6.5), (-3, 6.5), (4, 0.0), (4, math.nan), (4, math.inf)])
def test_impossible_rates_are_refused(nodes: int, rate: float) -> None:
    with pytest.raises(UsageError):
        mtbf_of_nodes_s(nodes, rate)
