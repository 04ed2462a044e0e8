"""A small training that draws from every random generator, for tests that interrupt it."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from resilient_launch.checkpoint.rng import seed_all
from resilient_launch.checkpoint.sampler import ResumableSampler
from resilient_launch.checkpoint.train_state import TrainState

SAMPLES, FEATURES = 48, 6
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.02),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, dampening=0.1),
}


class Training:
    """Two layers, batch norm and dropout; ``rank`` and ``world_size`` above one train under DDP."""

    def __init__(self, rank: int = 0, world_size: int = 1, optimizer: str = "adamw", seed: int = 1) -> None:
        seed_all(seed)
        model: torch.nn.Module = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )
        seed_all(seed, rank + 1)
        self.model = DistributedDataParallel(model) if world_size > 1 else model
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 5, 0.5)
        self.sampler = ResumableSampler(SAMPLES, batch_size=4, rank=rank, world_size=world_size, seed=seed)
        self.state = TrainState(
            model=self.model, optimizer=self.optimizer, lr_scheduler=self.scheduler, data=self.sampler
        )
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(SAMPLES, FEATURES, generator=generator)

    def train(self, until: int) -> None:
        batches = self.sampler.batches()
        while self.state.step < until:
            self.step(self.inputs[next(batches)])

    def step(self, batch: torch.Tensor) -> None:
        # Every generator has a say, so that losing any one of them shows.
        shift = random.random() + float(np.random.rand()) + float(torch.rand(()))
        loss = ((self.model(batch).squeeze(1) - batch.sum(1) - 0.1 * shift) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.state.advance()
