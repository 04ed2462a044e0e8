"""The job under rlaunch."""

from __future__ import annotations

import torch.distributed as dist

import resilient_launch as rl
from benchmarks.race_styles.race_common import STEPS, Training

dist.init_process_group("gloo")
with rl.attach() as run:
    training = Training(run.rank, run.world_size)
    state = rl.TrainState(model=training.model, optimizer=training.optimizer)
    run.restore(state)
    for step in run.steps(state, until=STEPS):
        training.step(step)
    training.finish()
dist.destroy_process_group()
