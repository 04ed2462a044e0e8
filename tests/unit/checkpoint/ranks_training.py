"""A training on real ranks, and its checkpoints."""

from pathlib import Path
from typing import Any

from real_ranks import Rank
from training import Training

from resilient_launch.checkpoint.checkpointer import Checkpointer


def checkpointer(me: Rank, directory: Path, **options: Any) -> Checkpointer:
    board = me.board(f"{directory} {options.get('attempt', 0)}")
    return Checkpointer(directory, rank=me.rank, world_size=me.world_size, board=board, **options)


def build(me: Rank, **options: Any) -> Training:
    return Training(me.rank, me.world_size, **options)


def path_of(directory: Path, step: int, attempt: int = 0) -> Path:
    return directory / f"step-{step:08d}.a{attempt:04d}.r0"


def train_and_save(me: Rank, directory: Path, *saves: int) -> None:
    training, saver = build(me), checkpointer(me, directory)
    for step in saves:
        training.train(step)
        saver.save(training.state)
