"""FSDP2 on four real ranks: an interrupted training ends as the uninterrupted one, and two ranks can take its state."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_ranks import Rank, Ranks
from sharded_training import ShardedTraining, checkpointer

from resilient_launch.checkpoint import store
from resilient_launch.checkpoint.digest import state_digest, state_lines
from resilient_launch.checkpoint.index import INDEX_NAME, Index
from resilient_launch.core.ids import CheckpointId

CUT, END = 4, 9


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[Ranks]:
    ranks = Ranks(4)
    yield ranks
    ranks.close()


def train_and_save(me: Rank, directory: Path, until: int) -> None:
    training = ShardedTraining(me, seed=1)
    training.train(until)
    checkpointer(me, directory).save(training.state)


def resume_train_and_save(me: Rank, directory: Path, until: int, lost: str) -> None:
    training = ShardedTraining(me, seed=2)
    saver = checkpointer(me, directory, attempt=1)
    assert saver.restore(training.state) is not None
    if lost == "one rank's momentum" and me.rank == 3:
        for values in training.optimizer.state.values():
            values["exp_avg"].zero_()
    training.train(until)
    saver.save(training.state)


def test_four_ranks_resume_exactly(four_ranks: Ranks, tmp_path: Path) -> None:
    four_ranks.values(train_and_save, tmp_path / "whole", END)
    whole = tmp_path / "whole" / str(CheckpointId(attempt=0, restart=0, step=END))
    four_ranks.values(train_and_save, tmp_path / "cut", CUT)
    digests = {}
    for lost in ("", "one rank's momentum"):
        directory = tmp_path / f"without {lost or 'nothing'}"
        shutil.copytree(tmp_path / "cut", directory)
        four_ranks.values(resume_train_and_save, directory, END, lost)
        digests[lost] = state_digest(directory / str(CheckpointId(attempt=1, restart=0, step=END)))
    assert digests[""] == state_digest(whole) != digests["one rank's momentum"]
    index = Index.parse(store.read_verified(whole, INDEX_NAME))
    files = {chunk.file for chunk in index.tensors["model/0.weight"].chunks}
    assert files == {f"shard-r{rank:05d}.bin" for rank in range(4)}


def take_and_save(me: Rank, source: Path, target: Path) -> None:
    training = ShardedTraining(me, seed=3)
    restored = checkpointer(me, source, attempt=1, on_topology_change="warn").restore(training.state)
    assert restored is not None and "saved by 4 ranks" in restored.warnings[0]
    checkpointer(me, target).save(training.state)


def test_two_ranks_take_the_full_state_of_four(four_ranks: Ranks, two_ranks: Ranks, tmp_path: Path) -> None:
    four_ranks.values(train_and_save, tmp_path / "four", CUT)
    two_ranks.values(take_and_save, tmp_path / "four", tmp_path / "two")
    name = str(CheckpointId(attempt=0, restart=0, step=CUT))
    four, two = shared_lines(tmp_path / "four" / name), shared_lines(tmp_path / "two" / name)
    assert four == two
    assert any("optimizer/state/3.weight/exp_avg_sq" in line for line in four)
    index = Index.parse(store.read_verified(tmp_path / "two" / name, INDEX_NAME))
    assert len(index.tensors["model/0.weight"].chunks) == 2


def shared_lines(path: Path) -> list[str]:
    """What the digest is over, without what belongs to single ranks."""
    return [line for line in state_lines(path) if not line.startswith(("rank ", "tensor rank"))]
