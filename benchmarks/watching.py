"""What watching costs: CPU time of each step and rank, in the step loop and in the node's agent.

``python -m benchmarks.watching [--json] [--quick]``. The step loop's part is the CPU time of ``boundary`` and of a
``local_work`` block, heartbeat, phases, windows of events and medians included, against the same loop without them. The
agent's part is the CPU time of the watchdogs of 16 nodes and of the store that they share, spread over the steps of
their ranks at 50 ms a step; the ranks of the second part are moved from another process. The watchdogs share a process,
because a virtual machine may be charged milliseconds each time that it wakes up from sleep, and nodes that train do not
sleep. ``against`` are as many bare threads that wake up as often and read one file for each rank.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.distributed import PrefixStore, TCPStore

from resilient_launch.checkpoint.train_state import TrainState
from resilient_launch.config.schema import CheckpointConfig, Every
from resilient_launch.job.page import Page, Phase
from resilient_launch.job.run import Run
from resilient_launch.job.watchdog import LOOK_S, Callbacks, Watchdog, Watched
from resilient_launch.job.workplace import Workplace
from resilient_launch.policy.hang import Limits

GOAL_US = 50.0
STEP_S = 0.05
RANKS_PER_NODE = 8
NUM_NODES = 16
NUM_STRETCHES = 5
MOVER = """
import sys, time
from pathlib import Path
from resilient_launch.job.page import Page, Phase
pages = [Page.open(Path(name)) for name in sys.argv[2:]]
print("ready", flush=True)
step = 0
while True:
    time.sleep(float(sys.argv[1]))
    step += 1
    for page in pages:
        page.step, page.beat_mono = step, time.monotonic()
        if step % 50 == 0:
            page.floats[Page.window_medians_s[step // 50 % 8]] = 0.04
            page.newest_window = step // 50
"""


def step_loop_us(num_steps: int) -> float:
    """Microseconds of CPU that a step costs its rank."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory)
        for name in ("events", "checkpoints"):
            (run_dir / name).mkdir()
        never = CheckpointConfig(every=Every(steps=num_steps * 10))
        run = Run(Workplace(run_dir, Page.create(run_dir / "page"), never))
        state = TrainState(model=torch.nn.Linear(1, 1))
        run.boundary(state)
        watched = _cpu_s(lambda: _watched_steps(run, state, num_steps))
        bare = _cpu_s(lambda: _bare_steps(state, num_steps))
        run.__exit__(None, None, None)
    return (watched - bare) / num_steps * 1e6


def _watched_steps(run: Run, state: TrainState, num_steps: int) -> None:
    for _ in range(num_steps):
        with run.local_work():
            pass
        state.advance()
        run.boundary(state)


def _bare_steps(state: TrainState, num_steps: int) -> None:
    for _ in range(num_steps):
        state.advance()


def _cpu_s(work: Any) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def agent_us(duration_s: float) -> float:
    """Microseconds of CPU that a step costs its rank's node agent."""
    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory) / f"r0.{rank}" for rank in range(NUM_NODES * RANKS_PER_NODE)]
        pages = [Page.create(file) for file in files]
        command = [sys.executable, "-c", MOVER, str(STEP_S), *map(str, files)]
        mover = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert mover.stdout is not None
            mover.stdout.readline()
            for page in pages:
                page.pid, page.phase = mover.pid, Phase.STEP
            server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
            watchdogs = _watch(server, Path(directory), files, pages)
            time.sleep(1.0)
            cost_us = _idle_us(duration_s)
            for watchdog in watchdogs:
                assert watchdog.is_alive(), "the watch ended before its measurement"
                watchdog.stop()
                watchdog.join()
        finally:
            mover.kill()
            mover.wait()
    return cost_us


def bare_us(duration_s: float) -> float:
    """The same of as many threads that wake up as often and read one file for each rank, and no more."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(LOOK_S):
            for _ in range(RANKS_PER_NODE):
                Path("/proc/self/stat").read_bytes()

    threads = [threading.Thread(target=look) for _ in range(NUM_NODES)]
    for thread in threads:
        thread.start()
    cost_us = _idle_us(duration_s)
    is_over.set()
    for thread in threads:
        thread.join()
    return cost_us


def _idle_us(duration_s: float) -> float:
    """CPU microseconds of this process while its main thread sleeps, for each rank and step of 50 ms of all nodes."""
    shares = []
    for _ in range(NUM_STRETCHES):
        began, cpu_began = time.monotonic(), time.process_time()
        time.sleep(duration_s / NUM_STRETCHES)
        shares.append((time.process_time() - cpu_began) / (time.monotonic() - began))
    # The middle one: a machine that is shared is charged now and then for what others do to its caches.
    return median(shares) * STEP_S / (NUM_NODES * RANKS_PER_NODE) * 1e6


def _watch(server: TCPStore, directory: Path, files: list[Path], pages: list[Page]) -> list[Watchdog]:
    watchdogs = []
    for node in range(NUM_NODES):
        mine = slice(node * RANKS_PER_NODE, (node + 1) * RANKS_PER_NODE)
        client = TCPStore("localhost", server.port, is_master=False, wait_for_workers=False)
        watched = Watched(
            node=f"n{node}",
            node_index=node,
            num_nodes=NUM_NODES,
            ranks=list(range(len(files)))[mine],
            pages=pages[mine],
            page_files=files[mine],
            log_dir=directory,
            nccl_pipes=f"{directory}/nccl-",
            nccl_traces=f"{directory}/trace-",
        )
        callbacks = Callbacks(
            emit=lambda kind, fields: None, on_hang=lambda blame: None, on_lost_nodes=lambda nodes: None
        )
        watchdogs.append(Watchdog(PrefixStore("g", client), watched, limits=Limits(), gaps={}, callbacks=callbacks))
        watchdogs[-1].start()
    return watchdogs


def measure(num_steps: int, duration_s: float) -> dict[str, Any]:
    parts = {"step loop": step_loop_us(num_steps), "agent": agent_us(duration_s)}
    total = sum(parts.values())
    against = bare_us(duration_s / 3)
    name = "CPU microseconds of each step and rank, all in"
    goal = {"name": name, "value": total, "against": against, "goal": GOAL_US}
    return {"schema": 1, "cpus": os.cpu_count(), "parts_us": parts, "goals": [{**goal, "met": total <= GOAL_US}]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    options = parser.parse_args()
    result = measure(50_000, 5.0) if options.quick else measure(500_000, 30.0)
    if options.json:
        print(json.dumps(result))
        return
    (goal,) = result["goals"]
    parts = ", ".join(f"{name} {value:.2f}" for name, value in result["parts_us"].items())
    figures = f"{goal['value']:.2f} against {goal['against']:.2f} (goal {goal['goal']:.0f}, met: {goal['met']})"
    print(f"{goal['name']}: {figures}; {parts}")


if __name__ == "__main__":
    main()
