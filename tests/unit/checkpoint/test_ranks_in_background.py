"""Saves in the background on two real ranks: exact resumption, an error on one of them, sharded states."""

import resource
from pathlib import Path

import torch
from ranks_training import build, checkpointer, path_of, train_and_save
from real_ranks import Rank, Ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from resilient_launch.checkpoint.background.saving import Background
from resilient_launch.checkpoint.digest import state_digest, state_lines
from resilient_launch.checkpoint.rng import seed_all
from resilient_launch.checkpoint.train_state import TrainState
from resilient_launch.core.errors import CheckpointError

CUT, END = 4, 9


def train_in_background(me: Rank, directory: Path, until: int, *, attempt: int = 0, restores: bool = False) -> int:
    """Train with a save in the background after every step, and no wait but for the memory."""
    board = me.board(f"{directory} {attempt}")
    training = build(me, seed=1 + attempt)
    saver = checkpointer(
        me, directory, attempt=attempt, background=Background(board, rank=me.rank, world_size=me.world_size)
    )
    if restores:
        assert saver.restore(training.state) is not None
    began = training.state.step
    for step in range(began + 1, until + 1):
        training.train(step)
        saver.begin_save(training.state)
    saver.close(120)
    return began


def test_two_ranks_resume_exactly_from_a_save_in_the_background(two_ranks: Ranks, tmp_path: Path) -> None:
    two_ranks.values(train_and_save, tmp_path / "whole", END)
    two_ranks.values(train_in_background, tmp_path / "cut", CUT)
    assert two_ranks.values(resume_in_background, tmp_path / "cut", END) == [CUT] * 2
    for step, name, attempt in ((CUT, "cut", 0), (END, "whole", 0), (END, "cut", 1)):
        assert path_of(tmp_path / name, step, attempt).is_dir()
    assert state_digest(path_of(tmp_path / "whole", END)) == state_digest(path_of(tmp_path / "cut", END, attempt=1))


def resume_in_background(me: Rank, directory: Path, until: int) -> int:
    return train_in_background(me, directory, until, attempt=1, restores=True)


def fail_on_one_rank(me: Rank, directory: Path) -> str:
    """Rank 1's writer can't write; both ranks hear of it, and their next save works."""
    board = me.board(f"{directory} 0")
    training = build(me)
    background = Background(board, rank=me.rank, world_size=me.world_size)
    saver = checkpointer(me, directory, background=background, save_timeout_s=600.0)
    training.train(1)
    saver.warm_up(training.state)
    saver.settle()
    pid = background.writer_pid
    assert pid is not None
    if me.rank == 1:
        # Too small a limit on the size of files is a full disk to this process alone.
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
    try:
        saver.begin_save(training.state).wait(120)
        said = "no error"
    except CheckpointError as error:
        said = str(error)
    if me.rank == 1:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    training.train(2)
    saver.begin_save(training.state).wait(120)
    saver.close(120)
    return said


def test_an_error_of_one_writer_reaches_every_rank_with_its_rank_and_path(two_ranks: Ranks, tmp_path: Path) -> None:
    results = two_ranks.values(fail_on_one_rank, tmp_path)
    # Nobody waited for the save's own limit: it is longer than a test may take.
    for said in results:
        assert "rank 1" in said
        assert str(tmp_path) in said
    assert [path.name for path in tmp_path.iterdir() if path.name != "LATEST"] == [path_of(tmp_path, 2).name]


def test_a_sharded_state_saved_in_the_background_is_the_one_saved_at_once(two_ranks: Ranks, tmp_path: Path) -> None:
    digests = two_ranks.values(save_sharded_twice, tmp_path)
    assert digests[0][0] == digests[0][1]


def save_sharded_twice(me: Rank, directory: Path) -> tuple[str, str]:
    seed_all(5)
    mesh = init_device_mesh("cpu", (me.world_size,))
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    state = TrainState(model=model, optimizer=optimizer)
    board = me.board(f"{directory} 0")
    background = Background(board, rank=me.rank, world_size=me.world_size)
    saver = checkpointer(me, directory, background=background)
    saver.save(state)
    state.step += 1
    saver.begin_save(state).wait(120)
    saver.close(120)
    lines = [list(state_lines(path_of(directory, step))) for step in (0, 1)]
    without_step = ["\n".join(line for line in each if not line.startswith("entry train")) for each in lines]
    return without_step[0], without_step[1]
