"""A training with everything that makes resuming hard, interrupted anywhere: it ends as the uninterrupted one.

fp16 with a gradient scaler that overflows and grows, two optimizers, loader workers with random augmentation; cuts in
mid-epoch, at an epoch's end, three times in one epoch. And the other way round: what is lost of it shows.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from resilient_launch.checkpoint.checkpointer import Checkpointer
from resilient_launch.checkpoint.digest import state_digest
from resilient_launch.checkpoint.loader import resumable_loader
from resilient_launch.checkpoint.rng import seed_all
from resilient_launch.checkpoint.sampler import ResumableSampler
from resilient_launch.checkpoint.train_state import TrainState

SAMPLES, FEATURES, BATCH = 40, 6, 4
EPOCH = SAMPLES // BATCH
END = 2 * EPOCH + 6


class Augmented(Dataset[Any]):
    """Noise from every generator on each sample, drawn where the sample is made."""

    def __init__(self) -> None:
        self.inputs = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        return self.inputs[index] + 0.1 * noise


class Training:
    """``features``: scaler, optimizers, workers, each on its own or together."""

    def __init__(self, features: set[str], seed: int = 1) -> None:
        seed_all(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )
        first, rest = list(self.model[0].parameters()), list(self.model[1:].parameters())
        if "optimizers" in features:
            self.optimizers = {
                "first": torch.optim.SGD(first, lr=0.05, momentum=0.9),
                "rest": torch.optim.AdamW(rest, lr=0.02),
            }
        else:
            self.optimizers = {"all": torch.optim.AdamW(first + rest, lr=0.02)}
        schedules = {
            name: torch.optim.lr_scheduler.StepLR(each, 5, 0.7 if name == "first" else 0.5)
            for name, each in self.optimizers.items()
        }
        self.schedules = schedules
        # So high that the first steps overflow and are left out, and growing often.
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=3, enabled="scaler" in features)
        self.sampler = ResumableSampler(SAMPLES, batch_size=BATCH, seed=seed)
        self.num_workers = 2 if "workers" in features else 0
        self.state = TrainState(
            model=self.model,
            optimizer=self.optimizers,
            lr_scheduler=schedules,
            data=self.sampler,
            scaler=self.scaler,
        )

    def train(self, until: int) -> None:
        loader = resumable_loader(Augmented(), self.sampler, num_workers=self.num_workers)
        batches: Iterator[torch.Tensor] = iter(loader)
        while self.state.step < until:
            self.step(next(batches))

    def step(self, batch: torch.Tensor) -> None:
        with torch.autocast("cpu", torch.float16, enabled=self.scaler.is_enabled()):
            loss = (self.model(batch).squeeze(1) - batch.sum(1)).square().mean()
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        for optimizer in self.optimizers.values():
            self.scaler.step(optimizer)
        self.scaler.update()
        for schedule in self.schedules.values():
            schedule.step()
        self.state.advance()


def final_digest(training: Training, directory: Path) -> str:
    training.train(END)
    report = Checkpointer(directory).save(training.state)
    return state_digest(directory / str(report.id))


def resumed(features: set[str], directory: Path, cuts: list[int]) -> Training:
    """Each life trains up to its cut and saves; the next was seeded otherwise, has trained a little, and resumes."""
    training = Training(features)
    for attempt, cut in enumerate(cuts):
        training.train(cut)
        Checkpointer(directory, attempt=2 * attempt).save(training.state)
        training = Training(features, seed=attempt + 2)
        training.train(2)
        restored = Checkpointer(directory, attempt=2 * attempt + 1).restore(training.state)
        assert restored is not None and restored.step == cut
    return training


ALL = {"scaler", "optimizers", "workers"}
CUTS = {"mid-epoch": [EPOCH + 3], "epoch-end": [EPOCH], "three-in-an-epoch": [EPOCH + 2, EPOCH + 3, EPOCH + 7]}


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_everything_at_once_resumes_exactly(tmp_path: Path, cuts: list[int]) -> None:
    reference = final_digest(Training(ALL), tmp_path / "reference")
    assert final_digest(resumed(ALL, tmp_path / "run", cuts), tmp_path / "final") == reference


@pytest.mark.parametrize("feature", sorted(ALL))
def test_each_alone_resumes_exactly(tmp_path: Path, feature: str) -> None:
    reference = final_digest(Training({feature}), tmp_path / "reference")
    assert final_digest(resumed({feature}, tmp_path / "run", [EPOCH + 3]), tmp_path / "final") == reference


def test_the_scaler_really_overflows_and_grows() -> None:
    training = Training({"scaler"})
    scales = []
    for step in range(1, END + 1):
        training.train(step)
        scales.append(training.scaler.get_scale())
    changes = [later / earlier for earlier, later in itertools.pairwise(scales)]
    assert 0.5 in changes and 2.0 in changes


def lose_scale(training: Training, fresh: Training) -> None:
    training.scaler.load_state_dict(fresh.scaler.state_dict())


def double_scale(training: Training, fresh: Training) -> None:
    """What a resume that counts one growth too many does."""
    state = training.scaler.state_dict()
    training.scaler.load_state_dict({**state, "scale": 2 * state["scale"]})


def lose_growth_tracker(training: Training, fresh: Training) -> None:
    training.scaler.load_state_dict({**training.scaler.state_dict(), "_growth_tracker": 0})


def lose_second_momentum(training: Training, fresh: Training) -> None:
    training.optimizers["rest"].state.clear()


def lose_second_schedule(training: Training, fresh: Training) -> None:
    training.schedules["rest"].load_state_dict(fresh.schedules["rest"].state_dict())


def lose_first_momentum(training: Training, fresh: Training) -> None:
    training.optimizers["first"].state.clear()


LOSSES = [
    lose_scale,
    double_scale,
    lose_growth_tracker,
    lose_second_momentum,
    lose_second_schedule,
    lose_first_momentum,
]


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_what_is_lost_shows(tmp_path: Path, lose: Callable[[Training, Training], None]) -> None:
    features = {"scaler", "optimizers"}
    reference = final_digest(Training(features), tmp_path / "reference")
    training = resumed(features, tmp_path / "run", [EPOCH + 4])
    assert training.scaler.state_dict()["_growth_tracker"] != 0
    lose(training, Training(features, seed=5))
    assert final_digest(training, tmp_path / "final") != reference
