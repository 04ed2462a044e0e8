"""Retention: what each rule keeps, and what no rule can take away."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_launch.core.errors import UsageError
from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.retention import (
    Kept,
    Policy,
    any_of,
    best,
    every_steps,
    keep_flags,
    lineage,
    newest,
    spaced,
)

HOUR_S = 3600.0
ids = st.builds(CheckpointId, attempt=st.integers(0, 3), restart=st.integers(0, 2), step=st.integers(0, 50))
items_of = st.lists(
    st.builds(
        Kept,
        id=ids,
        is_verified=st.booleans(),
        parent=st.none() | ids,
        saved_at=st.floats(0, 1000),
        metrics=st.just({}) | st.builds(lambda loss: {"loss": loss}, st.floats(0, 9)),
    ),
    unique_by=lambda item: item.id,
    max_size=12,
)


def ident(step: int, attempt: int = 0) -> CheckpointId:
    return CheckpointId(attempt=attempt, restart=0, step=step)


def item(step: int, *, attempt: int = 0, is_verified: bool = True, **more: Any) -> Kept:
    return Kept(id=ident(step, attempt), is_verified=is_verified, **more)


def steps_kept(items: list[Kept], policy: Policy) -> list[int]:
    return [each.id.step for each, keep in zip(items, policy(items), strict=True) if keep]


def test_the_newest_are_kept() -> None:
    assert keep_flags([item(10), item(30), item(20)], newest(2)) == [False, True, True]


def test_a_later_step_of_an_earlier_life_is_older() -> None:
    assert keep_flags([item(5000, attempt=0), item(300, attempt=1)], newest(1)) == [False, True]


def test_the_newest_verified_one_outlives_newer_unverified_ones() -> None:
    flags = keep_flags([item(10), item(20), item(30, is_verified=False)], newest(1))
    assert flags == [False, True, True]


def test_the_one_resumed_from_is_never_removed() -> None:
    assert keep_flags([item(10), item(20), item(30)], newest(1), resumed_from=item(10).id) == [True, False, True]


def test_nothing_is_removed_while_nothing_is_verified() -> None:
    unverified = [item(step, is_verified=False) for step in (10, 20, 30)]
    assert keep_flags(unverified, newest(1)) == [True, True, True]


def test_a_stale_step_of_an_earlier_life_does_not_outlive_the_lineage() -> None:
    """The first attempt got to 5000 and diverged; the second went on from 100."""
    items = [item(50), item(100), item(5000), item(150, attempt=1, parent=ident(100)), item(200, attempt=1)]
    assert [each.id.step for each in lineage(items)] == [200, 150, 100, 50]
    assert steps_kept(items, newest(3)) == [100, 150, 200]
    # It fills places that the lineage leaves, and no others.
    assert steps_kept(items, newest(5)) == [50, 100, 5000, 150, 200]
    for policy in (spaced(0), every_steps(1), best("loss")):
        assert 5000 not in steps_kept(items, policy)


def test_a_parent_that_is_gone_still_bounds_the_lineage() -> None:
    items = [item(80), item(120), item(150, attempt=1, parent=ident(100))]
    assert [each.id.step for each in lineage(items)] == [150, 80]


def test_a_spaced_history_does_not_change_as_it_grows() -> None:
    items = [item(number, saved_at=1e9 + number * HOUR_S) for number in range(30)]
    expected = [0, 6, 12, 18, 24]
    assert steps_kept(items, spaced(6 * HOUR_S)) == expected
    # Retention runs after every save: what is removed meanwhile changes nothing.
    left: list[Kept] = []
    for each in items:
        left.append(each)
        flags = keep_flags(left, any_of(newest(2), spaced(6 * HOUR_S)))
        left = [one for one, keep in zip(left, flags, strict=True) if keep]
    assert [each.id.step for each in left] == [*expected, 28, 29]


def test_a_clock_that_was_set_back_removes_nothing_it_should_not() -> None:
    items = [item(1, saved_at=1e9), item(2, saved_at=1e9 - 1e6), item(3, saved_at=1e9 + 7 * HOUR_S)]
    assert steps_kept(items, spaced(6 * HOUR_S)) == [1, 3]


def test_every_so_many_steps() -> None:
    assert steps_kept([item(500), item(999), item(1000), item(2000)], every_steps(1000)) == [1000, 2000]


def test_the_best_by_a_metric() -> None:
    losses = {10: 3.0, 20: 1.0, 30: 1.0, 40: 2.0}
    items = [item(step, metrics={"loss": loss}) for step, loss in losses.items()] + [item(50)]
    assert steps_kept(items, best("loss")) == [30]
    assert steps_kept(items, best("loss", 3)) == [20, 30, 40]
    assert steps_kept(items, best("loss", is_highest=True)) == [10]
    assert steps_kept(items, best("accuracy")) == []


def test_policies_compose() -> None:
    assert keep_flags([item(10), item(20), item(30), item(35)], any_of(newest(1), every_steps(20))) == [
        False,
        True,
        False,
        True,
    ]


def test_keeping_none_is_refused() -> None:
    for make in (lambda: newest(0), lambda: every_steps(0), lambda: best("loss", 0)):
        with pytest.raises(UsageError, match="at least one"):
            make()


policies = st.one_of(
    st.builds(newest, st.integers(1, 5)),
    st.builds(spaced, st.floats(0, 100)),
    st.builds(every_steps, st.integers(1, 9)),
    st.builds(best, st.just("loss"), st.integers(1, 3)),
)


@settings(deadline=None)
@given(items=items_of, policy=policies, resumed=st.none() | ids)
def test_whatever_the_policy_the_protected_stay(
    items: list[Kept], policy: Policy, resumed: CheckpointId | None
) -> None:
    flags = keep_flags(items, policy, resumed_from=resumed)
    kept = {each.id for each, keep in zip(items, flags, strict=True) if keep}
    verified = [each.id for each in items if each.is_verified]
    assert len(flags) == len(items)
    if verified:
        assert max(verified) in kept
    if resumed in {each.id for each in items}:
        assert resumed in kept
    # The order in which they are listed says nothing.
    assert keep_flags(items[::-1], policy, resumed_from=resumed) == flags[::-1]
