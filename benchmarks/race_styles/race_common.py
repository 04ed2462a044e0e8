"""The job that every style runs: one model, one order of the data, one record of the steps. Only the saving differs."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from resilient_launch.examples.quickstart import BATCH, CONTEXT, LanguageModel, load_text

STEPS = int(os.environ["RACE_STEPS"])
EVERY = int(os.environ["RACE_EVERY"])
HERE = Path(os.environ["RACE_DIR"])


class Training:
    """Everything that a checkpoint has to hold, except the random generators. ``data`` depends on the step alone."""

    def __init__(self, rank: int, world_size: int) -> None:
        torch.set_num_threads(1)
        self.rank, self.world_size = rank, world_size
        torch.manual_seed(1234)
        self.text = load_text()
        self.module = LanguageModel()
        self.model: nn.Module = DistributedDataParallel(self.module, find_unused_parameters=True)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=3e-3)
        # Dropout differs between ranks, as it should.
        torch.manual_seed(1234 + rank)
        (HERE / f"pid.{rank}").write_text(str(os.getpid()))

    def step(self, step: int) -> None:
        """One optimizer step, at least as long as the pace says, and its record."""
        began = time.monotonic()
        generator = torch.Generator().manual_seed(step * self.world_size + self.rank)
        starts = torch.randint(len(self.text) - CONTEXT - 1, (BATCH,), generator=generator)
        windows = self.text[starts[:, None] + torch.arange(CONTEXT + 1)].long()
        logits = self.model(windows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self.optimizer.step()
        time.sleep(max(float((HERE / "pace").read_text()) - (time.monotonic() - began), 0.0))
        if self.rank == 0:
            with (HERE / "steps.jsonl").open("a") as log:
                log.write(json.dumps([step + 1, time.time()]) + "\n")

    def finish(self) -> None:
        """Leave the digest of the final state."""
        if self.rank == 0:
            total = hashlib.sha256()
            for tensor in (*self.module.state_dict().values(), *_tensors(self.optimizer.state_dict())):
                total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
            (HERE / "digest").write_text(total.hexdigest())


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [tensor for item in items for tensor in _tensors(item)]
