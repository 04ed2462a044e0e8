"""The sampler's properties, for any size, ranks, batch and point of interruption."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.checkpoint.sampler import ResumableSampler, epoch_order
from resilient_launch.core.errors import CheckpointError, UsageError


def gang(world: int, state: dict[str, Any] | None = None, **options: Any) -> list[ResumableSampler]:
    samplers = [ResumableSampler(rank=rank, world_size=world, **options) for rank in range(world)]
    for sampler in samplers:
        if state is not None:
            sampler.load_state_dict(state)
    return samplers


def steps(samplers: list[ResumableSampler], count: int) -> list[list[int]]:
    """What all ranks together consume in each of ``count`` steps."""
    iterators = [sampler.batches() for sampler in samplers]
    taken = []
    for _ in range(count):
        taken.append([index for iterator in iterators for index in next(iterator)])
        for sampler in samplers:
            sampler.advance()
    return taken


FROZEN = [6, 1, 0, 5, 3, 8, 7, 9, 2, 4]

setups = st.fixed_dictionaries(
    {
        "num_samples": st.integers(12, 60),
        "batch_size": st.integers(1, 3),
        "seed": st.integers(0, 5),
        "shuffle": st.booleans(),
        "drop_last": st.booleans(),
    }
)
worlds = st.integers(1, 4)


@given(setup=setups, world=worlds)
def test_an_epoch_takes_each_sample_once(setup: dict[str, Any], world: int) -> None:
    samplers = gang(world, **setup)
    taken = [index for step in steps(samplers, len(samplers[0])) for index in step]
    assert len(set(taken)) == len(taken)
    left_out = setup["num_samples"] - len(taken)
    assert left_out < (setup["batch_size"] * world if setup["drop_last"] else world)
    assert all((sampler.epoch, sampler.offset) == (1, 0) for sampler in samplers)


@given(setup=setups, world=worlds, cuts=st.lists(st.integers(0, 25), max_size=4))
def test_any_number_of_resumes_changes_nothing(setup: dict[str, Any], world: int, cuts: list[int]) -> None:
    whole = steps(gang(world, **setup), 40)
    pieces: list[list[int]] = []
    samplers = gang(world, **setup)
    for cut in cuts:
        pieces += steps(samplers, cut)
        # The next process may even be configured with another seed: the state's holds.
        samplers = gang(world, samplers[-1].state_dict(), **{**setup, "seed": 99, "shuffle": True})
    pieces += steps(samplers, 40)
    assert pieces[:40] == whole


@given(setup=setups, first=worlds, then=worlds, cut=st.integers(0, 12))
def test_a_changed_world_size_loses_and_doubles_nothing(setup: dict[str, Any], first: int, then: int, cut: int) -> None:
    samplers = gang(first, **setup)
    cut %= len(samplers[0])
    before = [index for step in steps(samplers, cut) for index in step]
    resumed = gang(then, samplers[0].state_dict(), **setup)
    rest = [index for batches in zip(*resumed, strict=True) for batch in batches for index in batch]
    order = epoch_order(setup["num_samples"], setup["seed"], 0) if setup["shuffle"] else range(setup["num_samples"])
    taken = [*before, *rest]
    # Sample for sample the epoch's order, less what no longer fills a batch on every rank.
    assert sorted(taken) == sorted(order[: len(taken)])
    assert setup["num_samples"] - len(taken) < max(setup["batch_size"], 1) * max(first, then)


@given(setup=setups, world=worlds)
def test_fetching_ahead_moves_nothing(setup: dict[str, Any], world: int) -> None:
    (sampler, *_) = gang(world, **setup)
    before = sampler.state_dict()
    list(itertools.islice(sampler.batches(), 50))
    assert sampler.state_dict() == before


@given(world=worlds, per_step=st.integers(1, 4), count=st.integers(1, 12))
def test_accumulated_batches_count_as_consumed(world: int, per_step: int, count: int) -> None:
    sampler = ResumableSampler(40, batch_size=2, world_size=world, batches_per_step=per_step)
    batches = sampler.batches()
    for _ in range(count):
        list(itertools.islice(batches, per_step))
        sampler.advance()
    resumed = ResumableSampler(40, batch_size=2, world_size=world, batches_per_step=per_step)
    resumed.load_state_dict(sampler.state_dict())
    assert list(itertools.islice(resumed.batches(), 9)) == list(itertools.islice(batches, 9))


def test_the_order_is_frozen() -> None:
    assert epoch_order(10, seed=0, epoch=0).tolist() == FROZEN
    assert epoch_order(10, seed=0, epoch=1).tolist() != FROZEN
    assert epoch_order(10, seed=1, epoch=0).tolist() != FROZEN


def test_epochs_follow_each_other_by_iter() -> None:
    sampler = ResumableSampler(6, batch_size=2)
    seen = []
    for _ in range(3):
        for batch in sampler:
            seen.append(batch)
            sampler.advance()
    assert seen == list(itertools.islice(ResumableSampler(6, batch_size=2).batches(), 9))
    assert sampler.epoch == 3


def test_a_forgotten_advance_is_noticed() -> None:
    sampler = ResumableSampler(6, batch_size=2)
    list(sampler)
    with pytest.raises(RuntimeError, match="advance"):
        list(sampler)


def test_loading_under_a_live_iterator_is_noticed() -> None:
    sampler = ResumableSampler(6, batch_size=2)
    batches = sampler.batches()
    next(batches)
    sampler.load_state_dict(sampler.state_dict())
    with pytest.raises(RuntimeError, match="restore, then iterate"):
        next(batches)


def test_other_data_is_refused() -> None:
    state = ResumableSampler(6, batch_size=2).state_dict()
    with pytest.raises(CheckpointError, match="order of 6"):
        ResumableSampler(7, batch_size=2).load_state_dict(state)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": 2, "rank": 1},
        {"batch_size": 2, "seed": -1},
        {"batch_size": 4, "world_size": 2},
        {"batch_size": 2, "batches_per_step": 0},
    ],
)
def test_impossible_settings_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        ResumableSampler(6, **options)
