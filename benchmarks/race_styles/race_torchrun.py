"""The job under torchrun, saving as its tutorials do: rank 0 writes one snapshot file, everybody loads it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.race_styles.race_common import EVERY, HERE, STEPS, Training

SNAPSHOT = HERE / "snapshot.pt"


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    training = Training(rank, dist.get_world_size())
    step = 0
    if SNAPSHOT.exists():
        snapshot = torch.load(SNAPSHOT)
        training.module.load_state_dict(snapshot["model"])
        training.optimizer.load_state_dict(snapshot["optimizer"])
        step = snapshot["step"]
    while step < STEPS:
        training.step(step)
        step += 1
        if rank == 0 and step % EVERY == 0:
            torch.save(
                {"model": training.module.state_dict(), "optimizer": training.optimizer.state_dict(), "step": step},
                SNAPSHOT,
            )
    training.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
