from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.policy import stagger
from resilient_launch.policy.stagger import Sharer, Want, WriteSample

positive = st.floats(1e-3, 1e6)
sharers = st.lists(st.builds(Sharer, weight=positive, write_s=positive, mtbf_s=positive), min_size=1, max_size=12)


def want(**fields: object) -> Want:
    known = Want(id="a", kind="save", weight=1.0, write_s=10.0, mtbf_s=1000.0, age_s=100.0, period_s=100.0, arrived=0.0)
    return replace(known, **fields)  # type: ignore[arg-type]


def cielo(bandwidth: float, mtbf_h: float) -> list[Sharer]:
    jobs = ((8, 1024, 1310.72), (11, 256, 378.88), (2, 2048, 5734.4), (1, 1875, 1275.0))
    return [
        Sharer(weight=q, write_s=write_s * 40 / bandwidth, mtbf_s=17784 * 3600 * mtbf_h / q)
        for count, q, write_s in jobs
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("bandwidth", "mtbf_h", "bound"),
    [(40, 1, 0.389), (80, 1, 0.236), (160, 1, 0.157), (40, 8, 0.108), (40, 24, 0.0607)],
)
def test_bound_of_the_usual_rows(bandwidth: float, mtbf_h: float, bound: float) -> None:
    assert stagger.bound_waste(cielo(bandwidth, mtbf_h)) == pytest.approx(bound, abs=5e-4)


def test_light_load_leaves_everybody_its_own_optimum() -> None:
    alone = [Sharer(weight=4, write_s=10, mtbf_s=20_000)]
    assert stagger.joint_periods_s(alone) == [pytest.approx(math.sqrt(2 * 10 * 20_000))]


@given(sharers)
def test_joint_periods_fit_storage_and_are_never_shorter_than_alone(jobs: list[Sharer]) -> None:
    periods = stagger.joint_periods_s(jobs)
    load = sum(job.write_s / period_s for job, period_s in zip(jobs, periods, strict=True))
    assert load <= 1 + 1e-9
    assert all(
        period_s >= stagger.young_period_s(job.write_s, job.mtbf_s) * (1 - 1e-9)
        for job, period_s in zip(jobs, periods, strict=True)
    )
    if stagger.solo_load(jobs) > 1:
        assert load == pytest.approx(1, rel=1e-4)


def test_joint_periods_waste_least_among_neighbours_with_the_same_load() -> None:
    jobs = cielo(40, 1)

    def waste(periods: list[float]) -> float:
        return sum(
            job.weight * (job.write_s / period_s + period_s / 2 / job.mtbf_s)
            for job, period_s in zip(jobs, periods, strict=True)
        )

    best = stagger.joint_periods_s(jobs)
    moved = best.copy()
    # Shift a little storage time from the first job to the last.
    share = 0.01 * jobs[0].write_s / best[0]
    moved[0] = jobs[0].write_s / (jobs[0].write_s / best[0] - share)
    moved[-1] = jobs[-1].write_s / (jobs[-1].write_s / best[-1] + share)
    assert waste(best) < waste(moved)


def test_the_light_stretch_more_than_the_heavy() -> None:
    jobs = [Sharer(weight=1, write_s=100, mtbf_s=150), Sharer(weight=100, write_s=100, mtbf_s=150)]
    light, heavy = stagger.joint_periods_s(jobs)
    assert light > heavy


def test_the_older_heavier_shorter_and_frailer_go_first() -> None:
    usual = want()
    for urgent in (want(weight=2.0), want(age_s=200.0), want(write_s=5.0), want(mtbf_s=500.0)):
        assert stagger.rank(urgent, 0.0) < stagger.rank(usual, 0.0)


def test_a_restore_goes_ahead_of_a_save_of_its_like() -> None:
    assert stagger.rank(want(kind="restore", arrived=5.0), 5.0) < stagger.rank(want(age_s=500.0), 5.0)


def test_early_saves_go_last_until_they_are_due() -> None:
    early = want(id="b", weight=100.0, age_s=90.0)
    due = want(id="a")
    assert [each.id for each in stagger.in_order([early, due], 0.0)] == ["a", "b"]
    assert [each.id for each in stagger.in_order([early, due], 10.0)] == ["b", "a"]


def test_arrival_decides_between_equals() -> None:
    first, second = want(id="z", arrived=1.0, age_s=101.0), want(id="a", arrived=2.0, age_s=100.0)
    later = replace(second, age_s=102.0)
    assert stagger.rank(replace(first, kind="restore"), 3.0) < stagger.rank(replace(later, kind="restore"), 3.0)


@given(
    st.lists(
        st.builds(want, id=st.text("abc", min_size=1), weight=positive, write_s=positive, age_s=st.floats(0, 1e6)),
        max_size=8,
    ),
    st.floats(0, 1e6),
)
def test_order_is_a_permutation_and_independent_of_the_input_order(wants: list[Want], now: float) -> None:
    ordered = stagger.in_order(wants, now)
    assert sorted(map(repr, ordered)) == sorted(map(repr, wants))
    ranks = [stagger.rank(each, now) for each in ordered]
    assert ranks == sorted(ranks)
    assert [stagger.rank(each, now) for each in stagger.in_order(reversed(wants), now)] == ranks


def test_early_share_falls_with_the_load_to_four_fifths() -> None:
    assert stagger.early_share(0.0) == 1.0
    assert stagger.early_share(0.5) == pytest.approx(0.9)
    assert stagger.early_share(1.0) == stagger.early_share(7.0) == pytest.approx(0.8)


def samples(**rates: float) -> list[WriteSample]:
    """Three samples for each ``nK=bandwidth of all K together``."""
    return [
        WriteSample(num_writers=int(name[1:]), seconds=int(name[1:]) * 100 / rate, num_bytes=100)
        for name, rate in rates.items()
        for _ in range(stagger.MIN_SAMPLES)
    ]


@pytest.mark.parametrize(
    ("measured", "writers"),
    [
        ([], 1),
        (samples(n1=10), 2),
        (samples(n1=10, n2=19), 3),
        (samples(n1=10, n2=10.5), 1),
        (samples(n1=10, n2=19, n3=19.5), 2),
        (samples(n1=10, n2=19)[:-1], 2),
        ([WriteSample(num_writers=1, seconds=1, num_bytes=0)] * 9, 1),
    ],
)
def test_number_of_writers_follows_the_bandwidth(measured: list[WriteSample], writers: int) -> None:
    assert stagger.num_writers(measured) == writers


@given(st.integers(0, 500), st.floats(0, 1e5), st.integers(1, 64), st.floats(0, 1))
def test_poll_delay_is_bounded(position: int, hold_s: float, writers: int, jitter: float) -> None:
    delay_s = stagger.poll_delay_s(position, hold_s, writers, jitter)
    assert 0.8 <= delay_s <= 1.2 * stagger.MAX_POLL_S + 1e-9


def test_a_long_queue_lists_the_directory_a_few_times_a_second() -> None:
    assert sum(1 / stagger.poll_delay_s(position, 6.0, 4, 0.5) for position in range(60)) < 7


def test_the_head_of_slow_writers_looks_within_seconds() -> None:
    assert stagger.poll_delay_s(0, 1000.0, 1, 0.5) == stagger.HEAD_POLL_S[1]


def test_whoever_is_next_looks_when_a_silent_one_stops_to_count() -> None:
    usual_s = stagger.poll_delay_s(0, 1000.0, 1, 0.5)
    assert stagger.poll_delay_s(0, 1000.0, 1, 0.5, lapse_s=3.0) == pytest.approx(3.1)
    assert stagger.poll_delay_s(0, 1000.0, 1, 0.5, lapse_s=60.0) == usual_s
    later = [stagger.poll_delay_s(position, 1000.0, 4, 0.5, lapse_s=3.0) for position in range(5)]
    assert later == sorted(later) and len(set(later)) == 5
    # However often that is about to happen, nobody lists the directory all the time.
    assert stagger.poll_delay_s(0, 1000.0, 1, 0.5, lapse_s=-5.0) == pytest.approx(0.8)
