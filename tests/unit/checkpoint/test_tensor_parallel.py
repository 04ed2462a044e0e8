"""Tensor parallel over two real ranks, through torch's own plans: resumed exactly, and whole for one rank alone."""

from pathlib import Path
from typing import Any

import torch
from ranks_training import checkpointer, path_of
from real_ranks import Rank, Ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from resilient_launch.checkpoint.checkpointer import Checkpointer
from resilient_launch.checkpoint.digest import state_digest, state_lines
from resilient_launch.checkpoint.rng import seed_all
from resilient_launch.checkpoint.train_state import TrainState

CUT, END = 3, 7
PLAN = {"0": ColwiseParallel, "2": RowwiseParallel}


def layers() -> torch.nn.Sequential:
    # The last layer is no part of the plan, so every rank has all of it.
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, 1)
    )


class Training:
    def __init__(self, me: Rank | None, seed: int) -> None:
        seed_all(seed)
        self.model: torch.nn.Module = layers()
        if me is not None:
            mesh = init_device_mesh("cpu", (me.world_size,), mesh_dim_names=("tensor",))
            self.model = parallelize_module(self.model, mesh, {name: style() for name, style in PLAN.items()})
        self.model[0].bias.requires_grad_(False)  # type: ignore[index, union-attr]
        self.optimizer = torch.optim.AdamW([each for each in self.model.parameters() if each.requires_grad], lr=0.05)
        self.state = TrainState(model=self.model, optimizer=self.optimizer)

    def train(self, until: int) -> None:
        while self.state.step < until:
            # The same on every rank, from the generator that is part of the state.
            batch = torch.randn(4, 6)
            self.model(batch).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.state.advance()


def train_and_save(me: Rank, directory: Path, until: int) -> None:
    training = Training(me, seed=1)
    training.train(until)
    checkpointer(me, directory).save(training.state)


def resume_and_save(me: Rank, directory: Path, until: int) -> bool:
    training = Training(me, seed=2)
    saver = checkpointer(me, directory, attempt=1)
    assert saver.restore(training.state) is not None
    training.train(until)
    saver.save(training.state)
    weight: Any = training.model[0].weight  # type: ignore[index, union-attr]
    return bool(weight.placements[0].is_shard(0) and weight.to_local().shape == (4, 6))


def test_two_ranks_resume_exactly_and_one_takes_the_whole(two_ranks: Ranks, tmp_path: Path) -> None:
    two_ranks.values(train_and_save, tmp_path / "whole", END)
    two_ranks.values(train_and_save, tmp_path / "cut", CUT)
    assert two_ranks.values(resume_and_save, tmp_path / "cut", END) == [True, True]
    whole = path_of(tmp_path / "whole", END)
    assert state_digest(path_of(tmp_path / "cut", END, attempt=1)) == state_digest(whole)
    alone = Training(None, seed=3)
    restored = Checkpointer(tmp_path / "whole", attempt=1, on_topology_change="warn").restore(alone.state)
    assert restored is not None and "saved by 2 ranks" in restored.warnings[0]
    Checkpointer(tmp_path / "alone").save(alone.state)
    assert shared_lines(path_of(tmp_path / "alone", END)) == shared_lines(whole)


def shared_lines(path: Path) -> list[str]:
    """What the digest is over, without what belongs to single ranks."""
    return [line for line in state_lines(path) if not line.startswith(("rank ", "tensor rank"))]
