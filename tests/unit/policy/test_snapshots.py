"""Which snapshot in memory a restarted worker group goes on from."""

from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.snapshots import Holding, Mark, pick


def ident(step: int, restart: int = 0) -> CheckpointId:
    return CheckpointId(attempt=2, restart=restart, step=step)


def mark(step: int, restart: int = 0, number: int = 1) -> Mark:
    return Mark(ident(step, restart), number)


def holding(*steps: int) -> Holding:
    return Holding(marks=[mark(step) for step in steps])


def test_the_newest_that_every_rank_has_comes_first() -> None:
    picked = pick([holding(210, 220), holding(200, 210), holding(210, 220)], shared=ident(100))
    assert picked.marks == (mark(210),)
    assert picked.why == "complete on every rank; the newest on shared storage is step-00000100.a0002.r0"
    assert pick([holding(1, 3, 2)], shared=None).marks == (mark(3), mark(2), mark(1))


def test_a_rank_without_one_sends_all_to_shared_storage_and_says_why() -> None:
    picked = pick([holding(220), Holding(why_none="its writer is gone")], shared=ident(100))
    assert (picked.marks, picked.why) == ((), "rank 1 has no snapshot in memory: its writer is gone")
    assert pick([holding(220), holding(210)], shared=None).why == "no snapshot in memory is complete on every rank"


def test_two_captures_of_one_step_are_two_snapshots() -> None:
    one, other = Holding(marks=[mark(5, number=1)]), Holding(marks=[mark(5, number=2)])
    assert pick([one, other], shared=None).marks == ()


def test_shared_storage_is_the_truth_where_it_is_newer_by_lineage() -> None:
    # A later step of an earlier worker group is older than what a later group has saved.
    picked = pick([holding(220)], shared=ident(210, restart=1))
    assert picked.marks == ()
    assert "step-00000210.a0002.r1 on shared storage is newer than step-00000220.a0002.r0" in picked.why
    assert pick([holding(220)], shared=ident(220)).why == "complete on every rank; shared storage has the same"
    # Falling back from a damaged one must not go behind what is durable.
    assert pick([holding(200, 220)], shared=ident(210)).marks == (mark(220),)


def test_one_that_led_nowhere_again_and_again_is_not_taken_again() -> None:
    held = [holding(210, 220)]
    assert pick(held, shared=ident(100), passed_over={str(ident(220))}).marks == (mark(210),)
    picked = pick(held, shared=ident(100), passed_over={str(ident(220)), str(ident(210))})
    assert "led nowhere" in picked.why
