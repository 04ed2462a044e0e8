"""A small transformer language model, trained on the source text of Python's standard library.

It has what makes an exact resume hard: dropout on every rank, AdamW's moments, a learning-rate schedule and a shuffled
sampler. Run it under rlaunch, under torchrun, or alone: ``python -m resilient_launch.examples.quickstart --steps 50``.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import resilient_launch as rl

CONTEXT = 64
BATCH = 8
WIDTH = 64
TEXT_FILES = (
    "argparse",
    "ast",
    "asyncio/base_events",
    "datetime",
    "decimal",
    "inspect",
    "pickle",
    "subprocess",
    "typing",
)


def load_text() -> Tensor:
    """The corpus as bytes, shape (num_bytes,), dtype uint8: files that every Python installation has."""
    library = Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for name in TEXT_FILES if (path := library / f"{name}.py").exists())
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


class LanguageModel(nn.Module):
    """Next-byte prediction: (batch, context) bytes to (batch, context, 256) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(256, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.token(tokens) + self.position(torch.arange(length))
        logits: Tensor = self.head(self.blocks(hidden, mask=mask, is_causal=True))
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")

    with rl.attach() as run:
        run.seed(1234)
        text = load_text()
        model: nn.Module = LanguageModel()
        if run.world_size > 1:
            # Without this, DDP lays its buckets out anew after the first step it makes, and a resumed run would sum
            # the gradients of that one step in another order than the uninterrupted run did.
            model = DistributedDataParallel(model, find_unused_parameters=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        sampler = rl.ResumableSampler(
            (len(text) - 1) // CONTEXT, batch_size=BATCH, rank=run.rank, world_size=run.world_size, seed=7
        )
        state = rl.TrainState(model=model, optimizer=optimizer, lr_scheduler=schedule, data=sampler)
        run.restore(state)
        batches = sampler.batches()
        for step in run.steps(state, until=steps):
            starts = torch.tensor(next(batches)) * CONTEXT
            windows = text[starts[:, None] + torch.arange(CONTEXT + 1)].long()
            logits = model(windows[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            run.log(step, loss=loss.item(), learning_rate=float(schedule.get_last_lr()[0]))
            if run.rank == 0 and step % 20 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)  # noqa: T201

    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
