"""What happens once in a run's life: over attempts, ranks and lineages, and without a trace in the random numbers."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import PrefixStore, TCPStore

from resilient_launch.checkpoint import store
from resilient_launch.core.errors import UsageError
from resilient_launch.core.ids import CheckpointId
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.branches import branched
from resilient_launch.job.once import Once


class Place:
    """As much of a workplace as this needs."""

    def __init__(self, paths: RunPaths, rank: int = 0, world_size: int = 1, attempt: int = 0, port: int = 0) -> None:
        self.paths, self.rank, self.world_size, self.attempt, self._port = paths, rank, world_size, attempt, port

    def connect(self) -> Any:
        return PrefixStore(f"test/{self.attempt}", TCPStore("127.0.0.1", self._port, is_master=False))


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths(tmp_path / "run")
    found.checkpoints.mkdir(parents=True)
    return found


def happens(paths: RunPaths, step: int, name: str = "eval", **options: Any) -> bool:
    with Once(Place(paths, **options)).block(step, name) as is_due:
        return is_due


def test_each_step_and_name_once_over_attempts(paths: RunPaths) -> None:
    found = [happens(paths, step, name, attempt=attempt) for attempt in (0, 1) for step, name in KEYS]
    assert found == [True, True, True, False, False, False]


KEYS = [(100, "eval"), (200, "eval"), (100, "export")]


def test_what_was_interrupted_is_due_again(paths: RunPaths) -> None:
    once = Once(Place(paths))
    with pytest.raises(RuntimeError), once.block(100, "eval") as is_due:
        assert is_due
        raise RuntimeError("preempted")
    assert happens(paths, 100, attempt=1)
    assert not happens(paths, 100, attempt=2)


def test_what_was_told_to_end_early_is_due_again(paths: RunPaths) -> None:
    with Once(Place(paths)).block(100, "eval", is_cut_short=lambda: True) as is_due:
        assert is_due
    assert happens(paths, 100, attempt=1)
    assert not happens(paths, 100, attempt=2)


def test_a_new_lineage_does_again_what_comes_after_its_origin(paths: RunPaths) -> None:
    for step in (100, 200):
        store.write_buffers(paths.checkpoints, CheckpointId(0, 0, step), {"a.bin": b"1"})
        assert happens(paths, step)
    with branched(paths, CheckpointId(0, 0, 100), next_attempt=1):
        pass
    assert [happens(paths, step, attempt=1) for step in (100, 200, 200)] == [False, True, False]


def test_all_ranks_hear_the_first_ones_word(paths: RunPaths) -> None:
    """The others ask late, when it is done already: they must take part all the same, or a collective would hang."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [Once(Place(paths, rank, 3, port=server.port)) for rank in range(3)]

    def ask(rank: int, step: int) -> bool:
        with ranks[rank].block(step, "eval") as is_due:
            return is_due

    assert ask(0, 100)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda rank: ask(rank, 100), (1, 2))) == [True, True]
        assert list(pool.map(lambda rank: ask(rank, 100), range(3))) == [False, False, False]


def test_training_draws_the_same_numbers_whether_or_not_it_ran(paths: RunPaths) -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]

    def training(*, attempt: int) -> list[list[float]]:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        before = draw()
        with Once(Place(paths, attempt=attempt)).block(100, "eval") as is_due:
            assert is_due == (attempt == 0)
            if is_due:
                draw()
        return [before, draw()]

    assert training(attempt=0) == training(attempt=1)


@pytest.mark.parametrize(("step", "name"), [(-1, "eval"), (1, ""), (1, "../x"), (1, ".hidden"), (1, "a b")])
def test_names_that_are_none_are_refused(paths: RunPaths, step: int, name: str) -> None:
    with pytest.raises(UsageError, match="once for"):
        happens(paths, step, name)
