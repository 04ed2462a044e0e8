"""A DataLoader that resumes exactly: no draw from the training's random state, augmentation a function of the sample.

Stock loaders break exact resumption in two ways. Each new iterator draws its workers' seed from torch's global
generator, so a resume in mid-epoch shifts every dropout mask after it. And a worker's random state depends on how many
samples it has seen since it started, so augmentation after a resume differs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from resilient_launch.checkpoint.sampler import ResumableSampler

_Place = tuple[int, int, int]


def resumable_loader(dataset: Dataset[Any], sampler: ResumableSampler, **options: Any) -> DataLoader[Any]:
    """A DataLoader over ``sampler``'s batches from its current position on, over epochs without end.

    Make its iterator after the restore. ``options`` go to DataLoader (``num_workers``, ``collate_fn``, …). In worker
    processes, python's, NumPy's and torch's random state is seeded for each sample from the sampler's seed, the epoch
    and the sample's index; without workers, augmentation draws from the training's own random state, which is
    checkpointed. Map-style datasets only.
    """
    # Only to keep the loader off the global generator: what it draws is not used where samples are seeded.
    generator = torch.Generator()
    return DataLoader(_SeededSamples(dataset), batch_sampler=_Places(sampler), generator=generator, **options)


class _Places:
    """The sampler's batches, each sample with all that its random state depends on."""

    def __init__(self, sampler: ResumableSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[_Place]]:
        for epoch, batch in self._sampler.epochs_and_batches():
            yield [(self._sampler.seed, epoch, index) for index in batch]


class _SeededSamples(Dataset[Any]):
    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __getitem__(self, place: _Place) -> Any:
        if get_worker_info() is not None:
            words = np.random.SeedSequence(place).generate_state(3, np.uint64)
            random.seed(int(words[0]))
            np.random.seed(int(words[1]) & 0xFFFFFFFF)
            torch.manual_seed(int(words[2]) >> 1)
        return self._dataset[place[-1]]
