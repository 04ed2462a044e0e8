"""What the broken trainings share: a network with dropout, momentum, and samples drawn from their numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import resilient_launch as rl

NUM_SAMPLES, BATCH, STEPS = 512, 8, 200


def make_model() -> nn.Module:
    """Three layers and dropout, which draws from torch's global generator."""
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 1))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def make_sampler(run: rl.Run) -> rl.ResumableSampler:
    return rl.ResumableSampler(NUM_SAMPLES, batch_size=BATCH, rank=run.rank, world_size=run.world_size, seed=3)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, indices: list[int]) -> float:
    """One step on the samples of these numbers; returns the loss."""
    samples = torch.stack([_sample(index) for index in indices])
    target = samples.sum(dim=1, keepdim=True).sin()
    loss = nn.functional.mse_loss(model(samples), target)
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.item()


def _sample(index: int) -> Tensor:
    return torch.randn(8, generator=torch.Generator().manual_seed(index))
