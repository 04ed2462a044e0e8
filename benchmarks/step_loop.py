"""CPU time that ``run.steps`` adds to a step, on each rank, with events written as in a real run.

``python -m benchmarks.step_loop [--json] [--quick]``. Worker processes as a node agent starts them: a page each, a run
directory, a sampler and a small model in the state. Each process times the loop and the bare ``for`` alternately by
its own CPU clock, all its threads included, at 1 rank and at 4 ranks at once; the figure is the worst rank's median.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from torch.distributed import TCPStore

from benchmarks import common
from resilient_launch.config import dump, loads
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.page import Page

GOAL_US = 20.0
ROUNDS = 5
WORKER = """
import statistics, sys, time
import torch
import resilient_launch as rl

num_steps, num_rounds = int(sys.argv[1]), int(sys.argv[2])


def cpu_s(loop):
    began = time.process_time()
    for step in loop:
        if step == num_steps:
            break
    return time.process_time() - began


added_us = []
with rl.attach() as run:
    model = torch.nn.Linear(4, 4)
    sampler = rl.ResumableSampler(1 << 20, batch_size=8, rank=run.rank, world_size=run.world_size)
    for _ in range(num_rounds):
        # A fresh state counts from 0 again; the end is never reached, so that nothing is saved.
        state = rl.TrainState(model=model, data=sampler)
        run._page.step = -1
        own = cpu_s(run.steps(state, until=num_steps + 2))
        bare = cpu_s(range(num_steps + 2))
        added_us.append((own - bare) / num_steps * 1e6)
    lost = run._events.lost
print(statistics.median(added_us), lost, flush=True)
"""


def added_us(num_ranks: int, num_steps: int) -> float:
    """Microseconds of CPU a step on the worst of ``num_ranks`` ranks that run at the same time."""
    with tempfile.TemporaryDirectory() as name:
        paths = RunPaths(Path(name) / "run")
        paths.directory.mkdir()
        for directory in paths.all():
            directory.mkdir()
        text = f"name: run\nworkdir: {name}\ncommand: [worker]\ncheckpoint: {{every: 10000000 steps}}\n"
        paths.config.write_text(dump(loads(text, frozen=True)))
        pages = Path(name) / "pages"
        pages.mkdir()
        # As under an agent: the ranks agree on their saves over it.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        workers = []
        for rank in range(num_ranks):
            Page.create(pages / f"r0.{rank}")
            env = {
                **os.environ,
                "PYTHONPATH": str(common.REPOSITORY),
                "RLAUNCH_RUN_DIR": str(paths.directory),
                "RLAUNCH_PAGE_DIR": str(pages),
                "RLAUNCH_ATTEMPT": "0",
                "RLAUNCH_RESTART": "0",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(num_ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, "-c", WORKER, str(num_steps), str(ROUNDS)]
            workers.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
        answers = [worker.communicate(timeout=600)[0].split() for worker in workers]
        for rank, (worker, answer) in enumerate(zip(workers, answers, strict=True)):
            if worker.returncode or answer[1] != "0":
                raise RuntimeError(f"rank {rank} of {num_ranks} failed: exit code {worker.returncode}, {answer}")
            steps = (paths.events / f"a0000.r0.w{rank:05d}.jsonl").read_text().count('"window"')
            if steps < num_steps * ROUNDS // 100:
                raise RuntimeError(f"rank {rank} of {num_ranks} wrote {steps} windows only")
        return max(float(answer[0]) for answer in answers)


def measure(quick: bool) -> list[common.Goal]:
    num_steps = 20_000 if quick else 200_000
    return [
        common.at_most(
            f"CPU that run.steps adds, us a step and rank, {ranks} ranks", added_us(ranks, num_steps), GOAL_US
        )
        for ranks in (1, 4)
    ]


if __name__ == "__main__":
    common.main(__doc__, measure)
