"""False alarms of the hang timeout over a million steps, and how fast a stopped process is found.

``python -m benchmarks.hang [--json] [--quick]``. Step times around 50 ms with long tails: lognormal with sigma 1, and
Pareto with alpha 3, each with a median of 50 ms. A false alarm is a run that would be ended though it moves; how often
stacks would be taken of such a run is shown beside it. A process is stopped with SIGSTOP under watchdogs of two nodes
over a real store, with the default floor of 10 s and two histories of gaps.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch.distributed import PrefixStore, TCPStore

from resilient_launch.job.page import Page, Phase
from resilient_launch.job.watchdog import Callbacks, Watchdog, Watched
from resilient_launch.policy.hang import PATIENCE, Limits, timeout_s

NUM_STEPS = 1_000_000
MEDIAN_S = 0.05
MARGIN_S = 2.0
RANKS_PER_NODE = 4
LIMITS = Limits()
SLEEPER = "import signal; print('ready', flush=True); signal.pause()"
DRAWS: dict[str, Callable[[np.random.Generator], Any]] = {
    "lognormal sigma 1": lambda rng: MEDIAN_S * np.exp(rng.standard_normal(NUM_STEPS)),
    "Pareto alpha 3": lambda rng: MEDIAN_S / 2 ** (1 / 3) * (1.0 + rng.pareto(3.0, NUM_STEPS)),
}


def play(steps_s: list[float]) -> tuple[int, int]:
    """How often the watchdog would look closer at a step that ends by itself, and how often it would end the run."""
    largest, suspicions, alarms = 0.0, 0, 0
    for index, step_s in enumerate(steps_s):
        allowed_s = timeout_s("step", largest_gap_s=largest, num_gaps=index, limits=LIMITS)
        suspicions += step_s > allowed_s
        alarms += step_s > PATIENCE * allowed_s
        largest = max(largest, step_s)
    return suspicions, alarms


def time_to_find(largest_gap_s: float) -> float:
    """Seconds from SIGSTOP to the finding, with two nodes of four ranks each that stand still from then on."""
    with tempfile.TemporaryDirectory() as directory:
        processes = [
            subprocess.Popen([sys.executable, "-S", "-c", SLEEPER], stdout=subprocess.PIPE, text=True)
            for _ in range(2 * RANKS_PER_NODE)
        ]
        try:
            return _find(Path(directory), processes, largest_gap_s)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _find(directory: Path, processes: list[subprocess.Popen[str]], largest_gap_s: float) -> float:
    pages = []
    for rank, process in enumerate(processes):
        assert process.stdout is not None
        process.stdout.readline()
        page = Page.create(directory / f"r0.{rank}")
        page.pid, page.phase, page.step, page.resume_step = process.pid, Phase.STEP, 100, 0
        page.floats[Page.largest_gap_s[Phase.STEP]] = largest_gap_s
        pages.append(page)
    server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    found_at: list[float] = []
    found = threading.Event()

    def note(kind: str, fields: dict[str, Any]) -> None:
        if fields["status"] == "found":
            found_at.append(time.monotonic())
            found.set()

    watchdogs = []
    for node in range(2):
        ranks = range(node * RANKS_PER_NODE, (node + 1) * RANKS_PER_NODE)
        client = TCPStore("localhost", server.port, is_master=False, wait_for_workers=False)
        watched = Watched(
            node=f"n{node}",
            node_index=node,
            num_nodes=2,
            ranks=ranks,
            pages=[pages[rank] for rank in ranks],
            page_files=[directory / f"r0.{rank}" for rank in ranks],
            log_dir=directory,
            nccl_pipes=f"{directory}/nccl-",
            nccl_traces=f"{directory}/trace-",
        )
        callbacks = Callbacks(emit=note, on_hang=lambda blame: None, on_lost_nodes=lambda nodes: None)
        watchdogs.append(Watchdog(PrefixStore("g", client), watched, limits=LIMITS, gaps={}, callbacks=callbacks))
        watchdogs[-1].start()
    os.kill(processes[-1].pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    for page in pages:
        page.beat_mono = stopped_at
    found.wait(120.0)
    for watchdog in watchdogs:
        watchdog.join(30.0)
    return found_at[0] - stopped_at


def measure(num_seeds: int, gaps_s: list[float]) -> dict[str, Any]:
    goals: list[dict[str, Any]] = []
    for name, draw in DRAWS.items():
        played = [play(draw(np.random.default_rng(seed)).tolist()) for seed in range(1, num_seeds + 1)]
        suspicions, alarms = (list(column) for column in zip(*played, strict=True))
        of_seeds = f"{num_seeds} x 10^6 steps, {name}"
        goals.append({"name": f"runs ended wrongly in {of_seeds}", "value": sum(alarms), "goal": 0})
        goals[-1]["stacks_taken_by_seed"] = suspicions
    for gap_s in gaps_s:
        goal_s = max(LIMITS.floor_s, 5 * gap_s) + MARGIN_S
        goals.append(
            {"name": f"seconds to find a stop, largest gap {gap_s} s", "value": time_to_find(gap_s), "goal": goal_s}
        )
    for goal in goals:
        goal["met"] = goal["value"] <= goal["goal"]
    return {"schema": 1, "goals": goals}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="one million steps of each kind instead of ten")
    options = parser.parse_args()
    result = measure(1, [0.3]) if options.quick else measure(10, [0.3, 3.0])
    if options.json:
        print(json.dumps(result))
        return
    for goal in result["goals"]:
        taken = goal.get("stacks_taken_by_seed")
        more = f"; stacks taken of a step that ended by itself, by seed: {taken}" if taken else ""
        print(f"{goal['name']}: {goal['value']:.4g} (goal {goal['goal']:.4g}, met: {goal['met']}){more}")


if __name__ == "__main__":
    main()
