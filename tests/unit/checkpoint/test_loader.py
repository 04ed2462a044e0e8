"""Loaders with workers: what was fetched ahead is fetched again, and augmentation knows nothing of interruptions."""

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from resilient_launch.checkpoint.loader import resumable_loader
from resilient_launch.checkpoint.rng import seed_all
from resilient_launch.checkpoint.sampler import ResumableSampler


class Augmented(Dataset[Any]):
    """Each sample is its index and a draw from every generator."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.random(), np.random.rand(), float(torch.rand(()))], dtype=torch.float64)


def consume(sampler: ResumableSampler, loader: DataLoader[Any], count: int) -> list[Any]:
    """Take and train on ``count`` batches, drawing for the training in between as dropout does."""
    taken = []
    for batch in itertools.islice(loader, count):
        taken.append((batch.tolist(), float(torch.rand(()))))
        sampler.advance()
    return taken


def new_sampler() -> ResumableSampler:
    return ResumableSampler(20, batch_size=3, seed=4)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_three_resumes_in_one_epoch_change_nothing(num_workers: int) -> None:
    """Field trouble: prefetched batches skipped, only the last stretch counted, the workers' seed drawn once more."""
    seed_all(1)
    sampler = new_sampler()
    whole = consume(sampler, resumable_loader(Augmented(), sampler, num_workers=num_workers), 9)
    seed_all(1)
    pieces: list[Any] = []
    state: dict[str, Any] | None = None
    for count in (1, 2, 1, 5):
        sampler = new_sampler()
        if state is not None:
            sampler.load_state_dict(state)
        pieces += consume(sampler, resumable_loader(Augmented(), sampler, num_workers=num_workers), count)
        state = sampler.state_dict()
    assert pieces == whole
    assert state is not None and (state["epoch"], state["offset"]) == (1, 9)


def test_augmentation_differs_between_samples_and_epochs() -> None:
    sampler = new_sampler()
    batches = consume(sampler, resumable_loader(Augmented(), sampler, num_workers=1), 12)
    draws = [value for batch, _ in batches for row in batch for value in row[1:]]
    assert len(set(draws)) == len(draws)


def test_a_stock_loader_resumes_after_what_was_consumed() -> None:
    def take(sampler: ResumableSampler, count: int, num_workers: int) -> list[Any]:
        loader = DataLoader(list(range(20)), batch_sampler=sampler, num_workers=num_workers)
        return [batch for batch, _ in consume(sampler, loader, count)]

    whole = take(new_sampler(), 6, 2)
    first, second = new_sampler(), new_sampler()
    pieces = take(first, 2, 2)
    second.load_state_dict(first.state_dict())
    assert pieces + take(second, 6, 0) == whole
    assert len(whole) == len(first) == 6
