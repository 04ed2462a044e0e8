"""A small training under FSDP2 that draws from its ranks' random generators, for tests that interrupt it."""

from pathlib import Path
from typing import Any

import torch
from real_ranks import Rank
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from resilient_launch.checkpoint.checkpointer import Checkpointer
from resilient_launch.checkpoint.rng import seed_all
from resilient_launch.checkpoint.sampler import ResumableSampler
from resilient_launch.checkpoint.train_state import TrainState

SAMPLES, FEATURES = 48, 5


class ShardedTraining:
    """Sizes that neither two nor four ranks can share evenly; dropout, AdamW, a schedule, a position in the data."""

    def __init__(self, me: Rank, seed: int) -> None:
        seed_all(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 7), torch.nn.Dropout(0.3), torch.nn.Tanh(), torch.nn.Linear(7, 3, bias=False)
        )
        mesh = init_device_mesh("cpu", (me.world_size,))
        for module in (self.model[0], self.model[3], self.model):
            fully_shard(module, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)
        self.sampler = ResumableSampler(SAMPLES, batch_size=2, rank=me.rank, world_size=me.world_size, seed=seed)
        self.state = TrainState(
            model=self.model, optimizer=self.optimizer, lr_scheduler=self.schedule, data=self.sampler
        )
        self.inputs = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(7))
        seed_all(seed, me.rank + 1)

    def train(self, until: int) -> None:
        batches = self.sampler.batches()
        while self.state.step < until:
            self.model(self.inputs[next(batches)]).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            self.state.advance()


def checkpointer(me: Rank, directory: Path, **options: Any) -> Checkpointer:
    """A checkpointer whose words nobody else on this store reads."""
    board = me.board(f"{directory} {options.get('attempt', 0)}")
    return Checkpointer(directory, rank=me.rank, world_size=me.world_size, board=board, **options)
