"""The scheduler's rules, on plain values."""

from __future__ import annotations

import math

from resilient_launch.cluster.fake.schedule import Amount, Holding, Machine, Waiting, fits_empty, plan

MACHINES = [Machine(name=f"n{number}", total=Amount(4, 8000, 2)) for number in (1, 2, 3, 4)]


def waiting(job_id: int, nodes: int = 1, cpus: int = 4, **more: object) -> Waiting:
    given: dict[str, object] = {"partition": "low", "tier": 1, "needs": ((nodes, Amount(cpus)),), **more}
    return Waiting(job_id=job_id, **given)  # type: ignore[arg-type]


def holding(job_id: int, *names: str, end: float = 100.0, cpus: int = 4, **more: object) -> Holding:
    given: dict[str, object] = {"tier": 1, "start": float(job_id), "is_preemptable": True, **more}
    return Holding(job_id=job_id, end=end, use=dict.fromkeys(names, Amount(cpus)), **given)  # type: ignore[arg-type]


def test_a_gang_starts_whole_or_not_at_all() -> None:
    result = plan(0.0, MACHINES, [holding(1, "n1")], [waiting(2, nodes=4)])
    assert result.starts == {}
    assert result.reasons == {2: "Resources"}
    assert result.expected == {2: 100.0}


def test_small_jobs_share_a_node() -> None:
    result = plan(0.0, MACHINES[:1], [], [waiting(1, cpus=2), waiting(2, cpus=2), waiting(3, cpus=1)])
    assert result.starts == {1: ("n1",), 2: ("n1",)}


def test_gpus_and_memory_count() -> None:
    jobs = [waiting(number, needs=((1, Amount(1, 5000, 2)),)) for number in (1, 2)]
    assert plan(0.0, MACHINES[:2], [], jobs).starts == {1: ("n1",), 2: ("n2",)}
    too_much_memory = waiting(3, needs=((1, Amount(1, 9000)),))
    assert not fits_empty(too_much_memory, MACHINES)


def test_an_exclusive_job_takes_idle_nodes_whole() -> None:
    jobs = [waiting(1, cpus=1), waiting(2, cpus=1, exclusive=True), waiting(3, cpus=4)]
    assert plan(0.0, MACHINES[:3], [], jobs).starts == {1: ("n1",), 2: ("n2",), 3: ("n3",)}


def test_a_shorter_job_runs_in_front_of_a_blocked_one_and_a_longer_one_does_not() -> None:
    busy = [holding(1, "n1", "n2", end=100.0)]
    big, short, long = waiting(2, nodes=4, limit_s=50.0), waiting(3, limit_s=90.0), waiting(4, limit_s=200.0)
    result = plan(0.0, MACHINES, busy, [big, short, long])
    assert result.starts == {3: ("n3",)}
    assert result.reasons == {2: "Resources", 4: "Priority"}


def test_named_and_excluded_nodes() -> None:
    jobs = [waiting(1, nodes=2, nodelist=("n3",)), waiting(2, exclude=("n2",))]
    assert plan(0.0, MACHINES, [], jobs).starts == {1: ("n1", "n3"), 2: ("n4",)}


def test_a_range_of_nodes_takes_as_many_as_are_free() -> None:
    job = waiting(2, needs=((4, Amount(4)), (3, Amount(4)), (2, Amount(4))))
    assert plan(0.0, MACHINES, [holding(1, "n1")], [job]).starts == {2: ("n2", "n3", "n4")}


def test_a_node_that_is_down_is_not_used_but_counts_for_what_could_ever_fit() -> None:
    machines = [Machine(name="n1", total=Amount(4), is_usable=False)]
    assert plan(0.0, machines, [], [waiting(1)]).starts == {}
    assert fits_empty(waiting(1), machines)


def test_the_youngest_lower_job_is_preempted_and_none_in_vain() -> None:
    busy = [holding(1, "n1", "n2"), holding(2, "n3"), holding(3, "n4")]
    assert plan(0.0, MACHINES, busy, [waiting(9, nodes=1, tier=5)]).preempt == [3]
    assert sorted(plan(0.0, MACHINES, busy, [waiting(9, nodes=2, tier=5)]).preempt) == [2, 3]
    assert plan(0.0, MACHINES, busy, [waiting(9, nodes=2, tier=5, nodelist=("n1", "n2"))]).preempt == [1]


def test_no_preemption_of_equals_of_the_protected_or_for_nothing() -> None:
    assert plan(0.0, MACHINES[:1], [holding(1, "n1")], [waiting(9)]).preempt == []
    assert plan(0.0, MACHINES[:1], [holding(1, "n1", is_preemptable=False)], [waiting(9, tier=5)]).preempt == []
    two = [holding(1, "n1"), holding(2, "n2", is_preemptable=False)]
    assert plan(0.0, MACHINES[:2], two, [waiting(9, nodes=2, tier=5)]).preempt == []


def test_one_preemption_is_enough_while_its_grace_runs() -> None:
    busy = [holding(1, "n1", is_ending=True, end=10.0), holding(2, "n2", end=math.inf)]
    result = plan(0.0, MACHINES[:2], busy, [waiting(9, tier=5)])
    assert result.preempt == []
    assert result.expected == {9: 10.0}


def test_nodes_freed_for_a_higher_job_are_not_given_to_a_lower_one() -> None:
    busy = [holding(1, "n1", is_ending=True, end=10.0)]
    high, low = waiting(9, nodes=2, tier=5), waiting(10, limit_s=1000.0)
    assert plan(0.0, MACHINES[:2], busy, [high, low]).starts == {}
