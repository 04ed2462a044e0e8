"""A shuffled distributed sampler whose position is what training consumed, not what a loader fetched ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from resilient_launch.core.errors import CheckpointError, UsageError


def epoch_order(num_samples: int, seed: int, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The order of one epoch: a pure function of its arguments.

    NumPy's RandomState is used because its streams are frozen: the same order with every later version.
    """
    state = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, epoch])))
    return state.permutation(num_samples).astype(np.int64)


class ResumableSampler:
    """Gives this rank its batches of sample indices; serves as a DataLoader's ``batch_sampler``.

    Each step, all ranks together take the next ``batch_size * world_size`` samples of the epoch's order, each rank a
    contiguous ``batch_size`` of them. The position (epoch, and offset in samples taken by all ranks) moves only by
    ``advance``, once per completed step; TrainState.advance calls it. What a loader has prefetched beyond that is
    simply fetched again after a resume. ``batches_per_step`` is for gradient accumulation.

    A resume with another world size or batch size goes on at the same offset: no sample of the epoch is lost or
    doubled. With ``drop_last`` the samples at the end that do not fill a batch on every rank are left out; without
    it they are split evenly, and fewer samples than ranks are left out, since a rank without samples can't take a step.

    ``iter`` gives the rest of the current epoch, ``batches`` goes on over epochs without end. A live iterator raises
    RuntimeError once a state is loaded under it: restore first, then iterate.
    """

    is_replicated = True
    """The position is the same on every rank, and is saved once."""

    def __init__(
        self,
        num_samples: int,
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        batches_per_step: int = 1,
    ) -> None:
        if not 0 <= rank < world_size:
            raise UsageError(f"rank {rank} of {world_size}", why="ranks count from 0 to the world size less one")
        if batch_size < 1 or batches_per_step < 1:
            raise UsageError(f"batch size {batch_size}, {batches_per_step} batches a step", why="both must be positive")
        if seed < 0:
            raise UsageError(f"seed {seed}", why="must not be negative")
        least = batch_size * world_size if drop_last else world_size
        if num_samples < least:
            raise UsageError(f"{num_samples} samples", why=f"one batch on every rank takes {least}")
        self._num_samples, self._batch_size = num_samples, batch_size
        self._rank, self._world_size = rank, world_size
        self._seed, self._shuffle, self._drop_last = seed, shuffle, drop_last
        self._batches_per_step = batches_per_step
        self._epoch = 0
        self._offset = 0
        self._num_loads = 0
        self._exhausted_at: tuple[int, int] | None = None

    @property
    def seed(self) -> int:
        """What the order depends on beside the epoch; a restored state brings its own."""
        return self._seed

    @property
    def epoch(self) -> int:
        """The epoch of the next batch to be consumed, from 0."""
        return self._epoch

    @property
    def offset(self) -> int:
        """Samples of this epoch that all ranks together have consumed."""
        return self._offset

    def __len__(self) -> int:
        """Batches in a whole epoch on each rank."""
        full, rest = divmod(self._num_samples, self._batch_size * self._world_size)
        return full + (not self._drop_last and rest >= self._world_size)

    def __iter__(self) -> Iterator[list[int]]:
        """The rest of the current epoch."""
        begun = (self._epoch, self._offset)
        if self._exhausted_at == begun:
            raise RuntimeError("an epoch went by without advance(): call it, or TrainState.advance, after every step")
        for _, batch in self._from(*begun, endless=False):
            yield batch
        self._exhausted_at = begun

    def batches(self) -> Iterator[list[int]]:
        """Batches from the current position on, over epochs without end."""
        for _, batch in self._from(self._epoch, self._offset, endless=True):
            yield batch

    def epochs_and_batches(self) -> Iterator[tuple[int, list[int]]]:
        """``batches``, each with its epoch."""
        return self._from(self._epoch, self._offset, endless=True)

    def advance(self, num_steps: int = 1) -> None:
        """Count what ``num_steps`` training steps consumed."""
        for _ in range(num_steps * self._batches_per_step):
            taken = self._taken(self._offset)
            if taken == 0:
                self._epoch, self._offset = self._epoch + 1, 0
                taken = self._taken(0)
            self._offset += taken
        if self._taken(self._offset) == 0:
            self._epoch, self._offset = self._epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self._epoch,
            "offset": self._offset,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "num_samples": self._num_samples,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; its seed and order hold from here on, whatever was configured.

        Raises CheckpointError when the data has another number of samples.
        """
        if state["num_samples"] != self._num_samples:
            raise CheckpointError(
                f"the data has {self._num_samples} samples",
                why=f"the checkpoint's position is in an order of {state['num_samples']}",
                hint="resume with the data that the run began with",
            )
        self._epoch, self._offset = int(state["epoch"]), int(state["offset"])
        self._seed, self._shuffle = int(state["seed"]), bool(state["shuffle"])
        self._num_loads += 1
        self._exhausted_at = None

    def _taken(self, offset: int) -> int:
        """Samples that all ranks together take at ``offset``; 0 at the epoch's end."""
        whole = self._batch_size * self._world_size
        rest = self._num_samples - offset
        if rest >= whole:
            return whole
        return rest if not self._drop_last and rest >= self._world_size else 0

    def _from(self, epoch: int, offset: int, *, endless: bool) -> Iterator[tuple[int, list[int]]]:
        num_loads = self._num_loads
        while True:
            order = epoch_order(self._num_samples, self._seed, epoch) if self._shuffle else np.arange(self._num_samples)
            while taken := self._taken(offset):
                share, extra = divmod(taken, self._world_size)
                start = offset + self._rank * share + min(self._rank, extra)
                yield epoch, order[start : start + share + (self._rank < extra)].tolist()
                if num_loads != self._num_loads:
                    raise RuntimeError("a sampler's state was loaded under a live iterator: restore, then iterate")
                offset += taken
            if not endless:
                return
            epoch, offset = epoch + 1, 0
