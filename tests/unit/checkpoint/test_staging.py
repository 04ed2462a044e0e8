"""Copying a state into an arena: what the writer is told of is there already."""

from __future__ import annotations

import torch

from resilient_launch.checkpoint.background.arena import Arena
from resilient_launch.checkpoint.background.staging import Stager
from resilient_launch.checkpoint.train_state import TrainState


def test_what_is_told_of_is_in_place_and_the_first_word_comes_early() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2500, 2500), torch.nn.Linear(2500, 1000))
    capture = TrainState(model=model).capture()
    stager = Stager(rank=0, world_size=1)
    num_bytes = stager.layout(capture).num_bytes
    whole, arena = Arena.create(num_bytes), Arena.create(num_bytes)
    stager.copy(capture, whole)
    told: list[int] = []

    def progress(count: int) -> None:
        assert arena.view[:count] == whole.view[:count]
        told.append(count)

    stager.copy(capture, arena, progress)
    assert told == sorted(told) and told[-1] == num_bytes
    assert len(told) > 1 and told[0] < num_bytes / 2
    whole.close()
    arena.close()
