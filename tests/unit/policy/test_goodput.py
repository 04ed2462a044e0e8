"""Every GPU-second gets one label: told on small stories with known answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.policy.goodput import Allocation, Label, account


def event(
    kind: str, at: float, attempt: int = 0, rank: int | None = 0, restart: int = 0, **fields: Any
) -> dict[str, Any]:
    who = {} if rank is None else {"rank": rank}
    return {"kind": kind, "t": 1e9 + at, "mono": at, "attempt": attempt, "restart": restart, "node": 0, **who, **fields}


def resume(at: float, step: int = 0, rework: int = 0, world: int = 1, **who: Any) -> dict[str, Any]:
    return event("resume", at, resume_step=step, rework_steps=rework, world_size=world, **who)


def started(at: float, **who: Any) -> list[dict[str, Any]]:
    """Init at ``at``, restore a second later, the first step begins a second after that."""
    names = ("init", "restore", "first_step")
    return [event("phase", at + offset, phase=name, **who) for offset, name in enumerate(names)]


def steps(at: float, first: int, *ends: float, **who: Any) -> dict[str, Any]:
    return event("window", at + ends[-1], first=first, mono0=at, end_s=list(ends), **who)


def save(begin: float, end: float, step: int, reason: str = "time", **who: Any) -> list[dict[str, Any]]:
    return [
        event("checkpoint", begin, status="begin", step=step, reason=reason, **who),
        event("checkpoint", end, status="durable", step=step, reason=reason, **who),
    ]


def allocation(start: float, end: float, attempt: int = 0, **more: Any) -> Allocation:
    return Allocation(attempt=attempt, start_s=1e9 + start, end_s=1e9 + end, num_gpus=4, **more)


def spent(*labels: tuple[Label, float]) -> dict[Label, float]:
    """GPU-seconds of four GPUs from seconds."""
    return dict.fromkeys(Label, 0.0) | {label: 4 * seconds for label, seconds in labels}


def test_one_attempt_from_start_up_to_its_idle_tail() -> None:
    story = [
        *started(3),
        resume(5),
        steps(5, 0, 1, 2, 5, 6),
        *save(7, 9, 2),
        *save(11, 14, 4, reason="notice"),
        event("phase", 14, phase="leave"),
        event("end", 15, rank=None, cause="preempted", step=4),
    ]
    found = account(story, [allocation(0, 20, queued_s=1e9 - 30)])
    expected = spent(
        (Label.START_UP, 4),
        (Label.RESTORE, 1),
        (Label.USEFUL, 4),
        (Label.CHECKPOINT, 2),
        (Label.EMERGENCY, 3),
        (Label.IDLE_TAIL, 6),
    )
    assert dict(found.gpu_s) == pytest.approx(expected)
    assert found.queue_wait_s == 30
    assert found.goodput == pytest.approx(4 / 20)


def test_steps_done_before_are_rework() -> None:
    first = [*started(0), resume(2), steps(2, 0, 1, 2, 3, 4, 5)]
    who = {"attempt": 1}
    second = [*started(20, **who), resume(22, 2, 3, **who), steps(22, 2, 1, 2, 3, 4, **who)]
    found = account([*first, *second], [allocation(0, 10), allocation(20, 30, attempt=1)])
    expected = spent(
        (Label.START_UP, 1),
        (Label.RESTART, 1),
        (Label.RESTORE, 2),
        (Label.USEFUL, 5 + 1),
        # The steps that either end cut off count as lost.
        (Label.REWORK, 3 + 3 + 4),
    )
    assert dict(found.gpu_s) == pytest.approx(expected)


def test_a_worker_group_restart_inside_an_attempt() -> None:
    who = {"restart": 1}
    story = [
        *started(0),
        resume(2),
        steps(2, 0, 1, 2),
        *started(7, **who),
        resume(9, 0, 2, **who),
        steps(9, 0, 1, 2, 3, **who),
        event("phase", 12, phase="leave", **who),
    ]
    found = account(story, [allocation(0, 12)])
    expected = spent((Label.START_UP, 1), (Label.RESTORE, 2), (Label.USEFUL, 3), (Label.REWORK, 2), (Label.RESTART, 4))
    assert dict(found.gpu_s) == pytest.approx(expected)


def test_a_hang_lasts_from_the_last_progress_to_the_abort() -> None:
    story = [*started(0), resume(2), steps(2, 0, 1, 2), event("end", 14, rank=None, cause="hang", step=2)]
    found = account(story, [allocation(0, 16)])
    assert (found.gpu_s[Label.HANG], found.gpu_s[Label.IDLE_TAIL]) == (40, 8)


def test_a_background_write_blocks_until_it_is_staged() -> None:
    begin, durable = save(4, 8, 2)
    staged = event("checkpoint", 5, status="staged", step=2, reason="time")
    story = [*started(0), resume(2), steps(2, 0, 1, 2, 4, 5, 6, 7), begin, staged, durable]
    found = account(story, [allocation(0, 9)])
    assert (found.gpu_s[Label.CHECKPOINT], found.gpu_s[Label.USEFUL]) == (4, 24)


def phases(*entered: tuple[float, str]) -> list[dict[str, Any]]:
    return [event("phase", at, phase=name) for at, name in entered]


def test_before_it_leaves_training_waits_for_more_than_the_staging() -> None:
    begin, durable = save(4, 8, 2, reason="notice")
    staged = event("checkpoint", 5, status="staged", step=2, reason="notice")
    leaving = phases((4, "save"), (8, "step"), (8, "leave"))
    found = account([*started(0), resume(2), steps(2, 0, 1, 2), begin, staged, durable, *leaving], [allocation(0, 9)])
    assert (found.gpu_s[Label.EMERGENCY], found.gpu_s[Label.IDLE_TAIL]) == (16, 4)


def test_waiting_for_a_save_that_was_under_way_is_an_emergency_save() -> None:
    begin, durable = save(3, 7, 1)
    staged = event("checkpoint", 3.5, status="staged", step=1, reason="time", blocking_s=0.5)
    waited = phases((3, "save"), (3.5, "step"), (5, "save"), (7, "step"), (7, "leave"))
    story = [*started(0), resume(2), steps(2, 0, 1, 3), begin, staged, durable | {"drain_s": 3.5}, *waited]
    found = account(story, [allocation(0, 8)])
    assert (found.gpu_s[Label.CHECKPOINT], found.gpu_s[Label.EMERGENCY]) == (2, 8)
    assert (found.gpu_s[Label.USEFUL], found.gpu_s[Label.IDLE_TAIL]) == (4 * 2.5, 4)


def test_a_save_that_was_cut_short_is_still_a_save() -> None:
    begin, _ = save(4, 8, 2, reason="notice")
    found = account([*started(0), resume(2), steps(2, 0, 1, 2), begin], [allocation(0, 9)])
    assert found.gpu_s[Label.EMERGENCY] == 20


def test_the_slowest_ranks_excess() -> None:
    story = []
    for rank, local_s in enumerate(([0.5, 0.5], [0.5, 0.5], [1.0, 0.5])):
        who = {"rank": rank}
        story += [*started(0, **who), steps(2, 0, 1, 2, **who) | {"local_s": local_s}]
    found = account([*story, resume(2, world=3)], [allocation(0, 4)])
    assert found.gpu_s[Label.STRAGGLER] == pytest.approx(4 * 0.5)
    assert found.gpu_s[Label.USEFUL] == pytest.approx(4 * 1.5)


def test_local_times_that_come_late_and_steps_that_no_rank_timed() -> None:
    """On CUDA a window carries the local times of earlier steps; here step 3's never came, and window 1 of rank 0."""
    story = []
    for rank, slow_s in enumerate((0.0, 0.0, 0.25)):
        who = {"rank": rank}
        early = {"local_first": 0, "local_s": [0.5 + slow_s]}
        late = {"local_first": 1, "local_s": [0.5 + slow_s, 0.0, 0.0]}
        windows = [steps(2, 0, 1, 2, **who) | early, steps(2, 2, 3, 4, **who) | late]
        story += [*started(0, **who), *(windows if rank else windows[1:])]
    found = account([*story, resume(2, world=3)], [allocation(0, 6)])
    # Of step 0 two ranks told, whose median is their mean.
    assert found.gpu_s[Label.STRAGGLER] == pytest.approx(4 * (0.125 + 0.25))


def test_attempts_of_which_little_is_known() -> None:
    agent = event("attempt", 1, rank=None, job_id="1", slurm_restart_count=0, nodes=["a"])
    found = account([agent], [allocation(0, 10), allocation(20, 30, attempt=1)])
    assert (found.gpu_s[Label.START_UP], found.gpu_s[Label.UNKNOWN]) == (40, 40)
    killed = account(started(3)[:1], [allocation(0, 10)])
    assert killed.gpu_s[Label.START_UP] == 40


def test_nothing_at_all() -> None:
    assert account([], []).goodput == 0
    assert account([], [allocation(5, 5)]).allocated_gpu_s == 0


TIMES = st.floats(-50, 250)
EVENTS = st.one_of(
    st.builds(
        lambda at, attempt, restart, rank, name: event("phase", at, attempt, rank, restart, phase=name),
        TIMES,
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(0, 2),
        st.sampled_from(["init", "restore", "first_step", "step", "save", "leave"]),
    ),
    st.builds(
        lambda at, attempt, rank, first, ends: event(
            "window", at, attempt, rank, first=first, mono0=at - 10, end_s=ends
        ),
        TIMES,
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 30),
        st.lists(st.floats(0, 20), min_size=1, max_size=9),
    ),
    st.builds(
        lambda at, attempt, status, reason: event("checkpoint", at, attempt, status=status, step=3, reason=reason),
        TIMES,
        st.integers(0, 2),
        st.sampled_from(["begin", "staged", "durable", "failed"]),
        st.sampled_from(["time", "notice"]),
    ),
)


@given(st.lists(EVENTS, max_size=30), st.lists(st.tuples(st.floats(0, 200), st.floats(0, 200)), max_size=3))
def test_labels_add_up_to_the_allocation_whatever_the_events_say(
    events: list[dict[str, Any]], bounds: list[tuple[float, float]]
) -> None:
    allocations = [allocation(min(pair), max(pair), attempt=number) for number, pair in enumerate(bounds)]
    found = account(events, allocations)
    given_s = sum(4 * (each.end_s - each.start_s) for each in allocations)
    assert found.allocated_gpu_s == pytest.approx(given_s, rel=1e-9, abs=1e-6)
    assert min(found.gpu_s.values()) >= 0
    again = account([*events, *events], allocations)
    assert dict(again.gpu_s) == pytest.approx(dict(found.gpu_s))
