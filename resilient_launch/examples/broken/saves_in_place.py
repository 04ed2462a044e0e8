"""Wrong: it saves by itself, over the file that it resumes from; a kill in the middle leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import torch

import resilient_launch as rl
from resilient_launch.examples.broken.common import STEPS, make_model, make_optimizer, make_sampler, train_step

EVERY = 5


def main() -> None:
    with rl.attach() as run:
        run.seed(1)
        model = make_model()
        optimizer, sampler = make_optimizer(model), make_sampler(run)
        state = rl.TrainState(model=model, optimizer=optimizer, data=sampler)
        file = Path(os.environ["RLAUNCH_RUN_DIR"]) / "own.pt"
        if file.exists():
            saved = torch.load(file, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            sampler.load_state_dict(saved["sampler"])
            torch.set_rng_state(saved["rng"])
            state.step = saved["step"]
        batches = sampler.batches()
        for step in run.steps(state, until=STEPS):
            if step % EVERY == 0:
                everything = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                more = {"sampler": sampler.state_dict(), "rng": torch.get_rng_state()}
                torch.save({**everything, **more}, file)
            run.log(step, loss=train_step(model, optimizer, next(batches)))


if __name__ == "__main__":
    main()
