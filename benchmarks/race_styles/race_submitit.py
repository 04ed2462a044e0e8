"""The job as a submitit Checkpointable: every task is a rank; on a notice submitit requeues the job by itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import submitit


class Trainer(submitit.helpers.Checkpointable):
    """Trains from the last snapshot on. ``checkpoint`` of the base class asks for the same call again."""

    def __call__(self, *args: Any) -> None:
        env = submitit.JobEnvironment()
        # Every task is on this machine, and the nodes' names need not resolve.
        os.environ.update(
            RANK=str(env.global_rank),
            WORLD_SIZE=str(env.num_tasks),
            LOCAL_RANK=str(env.local_rank),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=os.environ["RACE_PORT"],
        )
        from benchmarks.race_styles.race_torchrun import main

        main()


def submit(folder: Path, minutes: int) -> str:
    """Submit it and return the job id."""
    executor = submitit.SlurmExecutor(folder, max_num_timeout=10, python=sys.executable)
    executor.update_parameters(
        nodes=2,
        ntasks_per_node=1,
        time=minutes,
        partition="low",
        mem="1G",
        signal_delay_s=90,
        additional_parameters={"requeue": True},
    )
    trainer = Trainer()  # type: ignore[no-untyped-call]
    return str(executor.submit(trainer).job_id)


if __name__ == "__main__":
    print(submit(Path(sys.argv[1]), int(sys.argv[2])))
