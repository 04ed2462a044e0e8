"""Digests of a state's pieces, and pieces put back as they were: the same for torch states and for arrays."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from resilient_launch.checkpoint.fingerprint import fingerprint, pieces, put_back, take
from resilient_launch.checkpoint.sampler import ResumableSampler
from resilient_launch.checkpoint.train_state import TrainState
from resilient_launch.examples.article.trainer import Trainer


class Torch:
    """A state of every usual piece, and a step of its training."""

    names = ("model", "optimizer", "lr_scheduler", "data", "rng", "step")

    def __init__(self) -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
        self.sampler = ResumableSampler(8, batch_size=2)
        self.state: Any = TrainState(
            model=self.model, optimizer=self.optimizer, lr_scheduler=self.schedule, data=self.sampler
        )

    def train(self) -> None:
        random.random()
        np.random.random()
        self.optimizer.zero_grad()
        self.model(torch.ones(4, 3)).square().sum().backward()
        self.optimizer.step()
        self.schedule.step()
        self.state.advance()


class Arrays:
    names = ("weights", "velocity", "epoch", "position", "dropout", "step")

    def __init__(self) -> None:
        self.state: Any = Trainer()

    def train(self) -> None:
        self.state.train_step()
        self.state.advance()


KINDS = pytest.mark.parametrize("kind", [Torch, Arrays])


@KINDS
def test_looking_changes_nothing_and_equal_states_look_equal(kind: type[Torch]) -> None:
    one, two = kind(), kind()
    assert tuple(pieces(one.state)) == kind.names
    before = fingerprint(one.state)
    assert fingerprint(one.state) == before
    one.train()
    first = fingerprint(one.state)
    # The generators are the process's own: each life draws from the same beginning.
    two = kind()
    assert fingerprint(two.state) == before != first
    two.train()
    assert fingerprint(two.state) == first


@KINDS
def test_a_piece_that_is_put_back_is_fresh_and_no_other_moved(kind: type[Torch]) -> None:
    for piece in kind.names:
        one = kind()
        fresh, taken = fingerprint(one.state), take(one.state, piece)
        one.train()
        trained = fingerprint(one.state)
        put_back(one.state, piece, taken)
        found = fingerprint(one.state)
        own = {name for name in found.parts if name == piece or name.startswith(f"{piece}.")}
        assert {name for name in found.parts if found.parts[name] != trained.parts[name]} <= own
        assert {name: found.parts[name] for name in own} == {name: fresh.parts[name] for name in own}
        assert one.state.step == (0 if piece == "step" else 1)


def test_each_generator_is_told_apart() -> None:
    state = Torch().state
    before = fingerprint(state).parts
    random.random()
    after = fingerprint(state).parts
    assert [name for name in after if after[name] != before[name]] == ["rng.python"]
