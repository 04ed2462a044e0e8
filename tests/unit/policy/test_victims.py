"""Whom a preemption costs least."""

import itertools
import random

import pytest

from resilient_launch.policy.victims import Candidate, Published, choose, loss_gpu_s, parse_comment, render_comment


def candidate(name: str, nodes: int, loss: float) -> Candidate:
    return Candidate(name=name, job_id=name, num_nodes=nodes, loss_gpu_s=loss)


def test_the_loss_is_seconds_since_the_save_times_gpus() -> None:
    published = Published(saved_at=1000, step=7, num_gpus=8)
    assert loss_gpu_s(published, now=1060.0) == 480
    # A node's clock may be ahead of ours.
    assert loss_gpu_s(published, now=990.0) == 0


def test_a_comment_says_what_was_published_and_others_say_nothing() -> None:
    published = Published(saved_at=1000, step=7, num_gpus=8)
    assert parse_comment(render_comment(published)) == published
    assert parse_comment(render_comment(published) + " and more") == published
    for comment in (
        "",
        "mine",
        "rlaunch1 saved=x step=7 gpus=8",
        "rlaunch2 saved=1 step=7 gpus=8",
        " rlaunch1 saved=1",
    ):
        assert parse_comment(comment) is None


def test_one_cheap_run_that_is_large_enough_beats_two() -> None:
    runs = [candidate("a", 1, 10), candidate("b", 1, 10), candidate("c", 4, 15)]
    assert [each.name for each in choose(runs, num_nodes=2)] == ["c"]
    assert [each.name for each in choose(runs, num_nodes=1)] == ["a"]
    assert [each.name for each in choose(runs, num_nodes=6)] == ["a", "b", "c"]


@pytest.mark.parametrize("num_nodes", [0, -1, 7])
def test_what_cannot_be_had_is_not_chosen(num_nodes: int) -> None:
    assert choose([candidate("a", 6, 1)], num_nodes=num_nodes) == []


def test_no_choice_is_cheaper() -> None:
    numbers = random.Random(5)
    for _ in range(50):
        runs = [candidate(str(i), numbers.randint(1, 4), numbers.randint(0, 30)) for i in range(7)]
        needed = numbers.randint(1, sum(run.num_nodes for run in runs))
        all_choices = itertools.chain.from_iterable(itertools.combinations(runs, n) for n in range(8))
        best = min(
            sum(each.loss_gpu_s for each in some) for some in all_choices if sum(e.num_nodes for e in some) >= needed
        )
        chosen = choose(runs, num_nodes=needed)
        assert sum(each.num_nodes for each in chosen) >= needed
        assert sum(each.loss_gpu_s for each in chosen) == best
