"""Wrong: the optimizer is not in the state, so every resume starts without momentum."""

from __future__ import annotations

import resilient_launch as rl
from resilient_launch.examples.broken.common import STEPS, make_model, make_optimizer, make_sampler, train_step


def main() -> None:
    with rl.attach() as run:
        run.seed(1)
        model = make_model()
        optimizer, sampler = make_optimizer(model), make_sampler(run)
        state = rl.TrainState(model=model, data=sampler)  # optimizer=optimizer is missing
        run.restore(state)
        batches = sampler.batches()
        for step in run.steps(state, until=STEPS):
            run.log(step, loss=train_step(model, optimizer, next(batches)))


if __name__ == "__main__":
    main()
