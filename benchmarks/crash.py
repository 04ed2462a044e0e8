"""How long a worker group takes to step again after one of its workers was killed, over its own imports.

``python -m benchmarks.crash [--json] [--quick]``. Two ranks of a small model on one node of the embedded fake Slurm;
one is killed with SIGKILL a few times. From the kill to the first step of the next group, less what the new workers
spend on importing: what is left is noticing, ending the group, meeting again and restoring the checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import common
from resilient_launch.config import loads
from resilient_launch.core.events import read_events
from resilient_launch.core.paths import RunPaths
from resilient_launch.launch import connect, make_plan, submit

GOAL_S = 3.0
TIMEOUT_S = 120.0
SCRIPT = """
import json, os, sys, time
began = time.time()
import torch
import torch.distributed as dist
import resilient_launch as rl
from resilient_launch.checkpoint import checkpointer, torch_board
imported = time.time()
dist.init_process_group("gloo")
with rl.attach() as run:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64), find_unused_parameters=True)
    state = rl.TrainState(model=model, optimizer=torch.optim.AdamW(model.parameters()))
    run.restore(state)
    said = False
    for step in run.steps(state, until=10**9):
        model(torch.ones(4, 64)).sum().backward()
        time.sleep(0.01)
        if not said and run.local_rank == 0:
            print(json.dumps({"restart": run.restart, "import_s": imported - began, "at": time.time()}), flush=True)
            said = True
"""
CONFIG = """
name: crash
script: train.py
cluster: fake
workers_per_node: 2
time: 1h
checkpoint: {every: 20 steps}
restart: {max_worker_restarts: 50}
fake: {nodes: 1}
"""


def _groups(logs: Path) -> list[dict[str, Any]]:
    """What the first rank of every worker group said so far at its first step."""
    lines = [line for file in sorted(logs.glob("*.0.log")) for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def _wait_for_group(logs: Path, number: int) -> dict[str, Any]:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        found = [group for group in _groups(logs) if group["restart"] == number]
        if found:
            return found[0]
        time.sleep(0.02)
    raise RuntimeError(f"worker group {number} did not step within {TIMEOUT_S:.0f} s; see {logs}")


def _worker(paths: RunPaths, rank: int) -> int:
    """The process that trains as ``rank``, as the agent said when it began the newest group."""
    begun = [event for event in read_events(paths.events) if event["kind"] == "group_begin"]
    newest = max((event for event in begun if str(rank) in event["pids"]), key=lambda event: float(event["t"]))
    return int(newest["pids"][str(rank)])


def recovery_s(num_kills: int) -> tuple[list[float], list[float]]:
    """(seconds over its imports, seconds of imports) of every restart."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "train.py").write_text(SCRIPT)
        config = loads(CONFIG, base=Path(name))
        root = Path(name) / "runs"
        plan = make_plan(config, root)
        connection = connect("fake", root, start=config.fake)
        try:
            submit(plan, connection)
            logs = plan.paths.attempt_logs(0)
            over_s, import_s = [], []
            _wait_for_group(logs, 0)
            for number in range(1, num_kills + 1):
                killed_at = time.time()
                os.kill(_worker(plan.paths, 1), signal.SIGKILL)
                group = _wait_for_group(logs, number)
                over_s.append(group["at"] - killed_at - group["import_s"])
                import_s.append(group["import_s"])
            return over_s, import_s
        finally:
            assert connection.fake is not None
            connection.fake.down()


def measure(quick: bool) -> list[common.Goal]:
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(common.REPOSITORY), *([path] if path else [])])
    over_s, import_s = recovery_s(2 if quick else 7)
    name = f"kill of a worker to the next group's first step, s over its imports, median of {len(over_s)}"
    return [common.at_most(name, statistics.median(over_s), GOAL_S, against=statistics.median(import_s))]


if __name__ == "__main__":
    common.main(__doc__, measure)
