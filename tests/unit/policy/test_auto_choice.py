"""What a running job chooses from what it measured."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.core.causes import Cause
from resilient_launch.policy.auto_interval import FALLBACK_S, LONGEST_S, SHORTEST_S, Choice, Measured, Stretch, choose
from resilient_launch.policy.interval import exact

HOUR = 3600.0


def settle(measured: Measured) -> float:
    """Where repeated updates end."""
    current_s = measured.current_s
    for _ in range(60):
        current_s = choose(
            Measured(
                current_s=current_s,
                prior_mtbf_s=measured.prior_mtbf_s,
                stretches=measured.stretches,
                costs_s=measured.costs_s,
                exempt_s=measured.exempt_s,
            )
        ).interval_s
    return current_s


def test_nothing_measured_leaves_what_stands() -> None:
    choice = choose(Measured(current_s=FALLBACK_S, prior_mtbf_s=HOUR, stretches=()))
    assert choice.interval_s == FALLBACK_S
    assert "no checkpoint has been measured yet: 10m stands" in choice.why


def test_one_update_moves_a_quarter_and_many_arrive() -> None:
    measured = Measured(current_s=600, prior_mtbf_s=3 * HOUR, stretches=(), costs_s=(1.0, 2.0, 90.0))
    choice = choose(measured)
    assert choice.target_s == pytest.approx(exact(2.0, 3 * HOUR)), "the median cost"
    assert choice.interval_s == pytest.approx(450)
    assert "as far as one update goes" in choice.why
    assert settle(measured) == pytest.approx(exact(2.0, 3 * HOUR))


def test_ends_that_are_no_failures_count_as_running_time_only() -> None:
    ends = [Stretch(length_s=HOUR, cause=cause) for cause in (Cause.FINISHED, Cause.TIME_LIMIT, Cause.CANCELLED, None)]
    choice = choose(Measured(current_s=600, prior_mtbf_s=HOUR, stretches=ends, costs_s=(5.0,)))
    assert (choice.num_interruptions, choice.exposure_s) == (0, 4 * HOUR)
    assert choice.rate.mtbf_s == pytest.approx(5 * HOUR)


def test_failures_shorten_and_saved_work_lengthens() -> None:
    crashed = [Stretch(length_s=HOUR / 2, cause=Cause.CRASH)] * 8
    saved = [Stretch(length_s=HOUR / 2, cause=Cause.PREEMPTED, was_saved=True)] * 8
    unsaved = [Stretch(length_s=HOUR / 2, cause=Cause.PREEMPTED)] * 8
    calm, bad, mild, late = (
        choose(Measured(current_s=600, prior_mtbf_s=24 * HOUR, stretches=stretches, costs_s=(10.0,))).target_s
        for stretches in ((), crashed, saved, unsaved)
    )
    assert bad < calm and bad < mild
    assert late == bad, "a notice that saved nothing is no notice"


def test_old_interruptions_weigh_less() -> None:
    frequent = [Stretch(length_s=600.0, cause=Cause.CRASH)] * 30
    rare = [Stretch(length_s=6000.0, cause=Cause.CRASH)] * 30
    improved, worsened = (
        choose(Measured(current_s=600, prior_mtbf_s=HOUR, stretches=stretches, costs_s=(10.0,))).rate.mtbf_s
        for stretches in (frequent + rare, rare + frequent)
    )
    assert improved > 1.5 * worsened


def test_a_window_free_of_preemption_is_counted_apart_and_followed_at_once() -> None:
    stretches = [Stretch(length_s=3 * HOUR, cause=Cause.PREEMPTED)] * 10
    choice = choose(
        Measured(current_s=600, prior_mtbf_s=24 * HOUR, stretches=stretches, costs_s=(10.0,), exempt_s=2 * HOUR)
    )
    assert choice.hazard.late_rate == pytest.approx(1 / HOUR)
    assert choice.rate.mtbf_s > 24 * HOUR, "thirty hours without any other failure"
    assert choice.interval_at(0) == choice.interval_s
    assert choice.interval_at(2.5 * HOUR) < choice.interval_s / 3


def test_a_drain_costs_what_it_slows_and_is_never_overtaken() -> None:
    def best(**more: Any) -> Choice:
        return choose(Measured(current_s=600, prior_mtbf_s=24 * HOUR, stretches=(), costs_s=(10.0,), **more))

    alone, slowed = best(), best(drains_s=(100.0, 120.0, 110.0), slowdown=0.5)
    assert best(drains_s=(110.0,)).target_s == pytest.approx(alone.target_s), "a drain that slows nothing is free"
    assert slowed.cost_s == pytest.approx(10.0 + 0.5 * 110.0)
    assert slowed.target_s == pytest.approx(exact(65.0, 24 * HOUR))
    assert "drains for 1m50s" in slowed.why and "drains" not in alone.why
    assert best(drains_s=(2 * HOUR,)).target_s == 2 * HOUR


def test_an_interval_stays_finite_where_failures_come_faster_than_saves() -> None:
    stretches = [Stretch(length_s=0.0, cause=Cause.PREEMPTED, was_saved=True)]
    choice = choose(Measured(current_s=1.0, prior_mtbf_s=1.0, stretches=stretches, costs_s=(689.0,), exempt_s=1.0))
    assert SHORTEST_S <= choice.interval_at(2.0) <= LONGEST_S


STRETCH = st.builds(
    Stretch,
    length_s=st.floats(0, 1e9),
    cause=st.none() | st.sampled_from(Cause),
    was_saved=st.booleans(),
    start_age_s=st.floats(0, 1e9),
)


@given(
    current=st.floats(1e-9, 1e12),
    prior=st.floats(1e-3, 1e12),
    stretches=st.lists(STRETCH, max_size=20),
    costs=st.lists(st.floats(0, 1e9), max_size=12),
    exempt=st.floats(0, 1e9),
    drains=st.lists(st.floats(0, 1e9), max_size=12),
    slowdown=st.floats(0, 1),
)
def test_every_choice_is_finite_bounded_and_explained(
    current: float,
    prior: float,
    stretches: list[Stretch],
    costs: list[float],
    exempt: float,
    drains: list[float],
    slowdown: float,
) -> None:
    choice = choose(
        Measured(
            current_s=current,
            prior_mtbf_s=prior,
            stretches=stretches,
            costs_s=tuple(costs),
            exempt_s=exempt,
            drains_s=drains,
            slowdown=slowdown,
        )
    )
    assert SHORTEST_S <= choice.interval_s <= LONGEST_S
    standing = min(max(current, SHORTEST_S), LONGEST_S)
    assert 0.75 * standing * (1 - 1e-9) <= choice.interval_s <= 1.25 * standing * (1 + 1e-9)
    assert math.isfinite(choice.interval_at(exempt + 1)) and choice.interval_at(exempt + 1) >= SHORTEST_S
    assert choice.why
