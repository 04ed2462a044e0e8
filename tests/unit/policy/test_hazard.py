"""When to save under a risk that is known to change."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.policy.hazard import Hazard, next_save, schedule
from resilient_launch.policy.interval import exact

HOUR = 3600.0
KNOWN = Hazard(base_rate=1 / (24 * HOUR), late_rate=1 / HOUR, exempt_s=2 * HOUR)


def test_one_checkpoint_lands_just_before_the_exemption_ends() -> None:
    begins = schedule(KNOWN, start_s=600, cost_s=120, until_s=8 * HOUR)
    assert any(begin + 120 == pytest.approx(2 * HOUR) for begin in begins)
    later = [begin for begin in begins if begin > 2 * HOUR]
    assert later[0] - 2 * HOUR == pytest.approx(exact(120, 1 / (1 / HOUR + 1 / (24 * HOUR))))


def test_one_checkpoint_lands_just_before_the_time_limit_and_none_after() -> None:
    begins = schedule(Hazard(base_rate=1 / HOUR, limit_s=4 * HOUR), start_s=60, cost_s=30, until_s=math.inf)
    assert begins[-1] + 30 == pytest.approx(4 * HOUR)
    gaps = {round(second - first, 3) for first, second in itertools.pairwise(begins)}
    assert len(gaps) == 1, "spread evenly"


def test_without_edges_the_interval_is_the_best_one_always() -> None:
    begins = schedule(Hazard(base_rate=1 / HOUR), start_s=0, cost_s=30, until_s=4 * HOUR)
    best = exact(30, HOUR)
    assert begins[:3] == pytest.approx([best, 2 * best + 30, 3 * best + 60])


def test_a_save_that_landed_is_not_begun_again() -> None:
    again = next_save(KNOWN, age_s=2 * HOUR - 1, saved_age_s=2 * HOUR - 1, cost_s=120)
    assert again > 2 * HOUR + 120


@given(
    base=st.floats(1e-9, 1e-2),
    late=st.floats(0, 1e-2),
    exempt=st.floats(0, 1e5),
    limit=st.floats(1, 1e6) | st.just(math.inf),
    age=st.floats(0, 1e6),
    since=st.floats(0, 1e5),
    cost=st.floats(1e-3, 1e4),
)
def test_the_next_save_is_never_in_the_past(
    base: float, late: float, exempt: float, limit: float, age: float, since: float, cost: float
) -> None:
    hazard = Hazard(base_rate=base, late_rate=late, exempt_s=exempt, limit_s=limit)
    assert next_save(hazard, age_s=age, saved_age_s=age - since, cost_s=cost) >= age
