"""Retention: what each rule keeps, and what no rule can take away."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_launch.core.errors import UsageError
from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.retention import Kept, any_of, keep_flags, newest

ids = st.builds(CheckpointId, attempt=st.integers(0, 3), restart=st.integers(0, 2), step=st.integers(0, 50))
items_of = st.lists(st.builds(Kept, id=ids, is_verified=st.booleans()), unique_by=lambda item: item.id, max_size=12)


def item(step: int, *, attempt: int = 0, is_verified: bool = True) -> Kept:
    return Kept(id=CheckpointId(attempt=attempt, restart=0, step=step), is_verified=is_verified)


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


def test_policies_compose() -> None:
    every_20 = lambda items: [each.id.step % 20 == 0 for each in items]  # noqa: E731
    assert keep_flags([item(10), item(20), item(30), item(35)], any_of(newest(1), every_20)) == [
        False,
        True,
        False,
        True,
    ]


def test_keeping_none_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one"):
        newest(0)


@settings(deadline=None)
@given(items=items_of, count=st.integers(1, 5), resumed=st.none() | ids)
def test_whatever_the_policy_the_protected_stay(items: list[Kept], count: int, resumed: CheckpointId | None) -> None:
    flags = keep_flags(items, newest(count), resumed_from=resumed)
    kept = {each.id for each, keep in zip(items, flags, strict=True) if keep}
    verified = [each.id for each in items if each.is_verified]
    assert len(flags) == len(items)
    if verified:
        assert max(verified) in kept
    if resumed in {each.id for each in items}:
        assert resumed in kept
    # The order in which they are listed says nothing.
    assert keep_flags(items[::-1], newest(count), resumed_from=resumed) == flags[::-1]
