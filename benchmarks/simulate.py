"""How fast the job simulator plays the article's sweep, against the same simulation as a plain Python loop.

``python -m benchmarks.simulate [--json] [--quick]``: three checkpoint costs, ten intervals each, 400 runs of 200 hours.
Exits with 1 when the goal is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from typing import Any

from resilient_launch.core.units import HOUR_S, MINUTE_S
from resilient_launch.lab.simulate.gaps import Exponential
from resilient_launch.lab.simulate.job import JobModel, simulate
from resilient_launch.lab.simulate.plans import Spaced
from resilient_launch.policy import interval

MTBF_S, RESTART_S, WORK_S, NUM_RUNS = 3.1 * HOUR_S, 10.0 * MINUTE_S, 200.0 * HOUR_S, 400
COSTS_S = (20.0, 120.0, 600.0)
MINUTES = (5, 10, 20, 30, 45, 60, 90, 120, 180)
GOAL_S = 3.0


def sweep() -> list[tuple[float, float]]:
    """Cost and interval of each configuration, in seconds."""
    return [
        (cost_s, interval_s)
        for cost_s in COSTS_S
        for interval_s in (*(minutes * float(MINUTE_S) for minutes in MINUTES), interval.young(cost_s, MTBF_S))
    ]


def plain_goodput(cost_s: float, interval_s: float, rng: random.Random) -> float:
    """One run, one chunk at a time: as the simulation reads in words."""
    now_s, done_s = 0.0, 0.0
    fails_at_s = rng.expovariate(1 / MTBF_S)
    while done_s < WORK_S:
        chunk_s = min(interval_s, WORK_S - done_s)
        if now_s + chunk_s + cost_s <= fails_at_s:
            now_s += chunk_s + cost_s
            done_s += chunk_s
            continue
        now_s = fails_at_s
        while True:
            fails_at_s = now_s + rng.expovariate(1 / MTBF_S)
            if now_s + RESTART_S <= fails_at_s:
                now_s += RESTART_S
                break
            now_s = fails_at_s
    return WORK_S / now_s


def measure(*, quick: bool) -> dict[str, Any]:
    configurations = sweep()
    models = [
        JobModel(work_s=WORK_S, cost_s=cost_s, restart_s=RESTART_S, gaps=Exponential(MTBF_S), plan=Spaced(interval_s))
        for cost_s, interval_s in configurations
    ]
    seconds = []
    for seed in range(1 if quick else 5):
        began = time.process_time()
        outcomes = simulate(models, num_runs=NUM_RUNS, seed=seed)
        seconds.append(time.process_time() - began)
    ours_s = sorted(seconds)[len(seconds) // 2]
    rng = random.Random(1)
    # The loop is timed on a part of its runs: the whole takes minutes, and each run costs the same.
    num_plain = 2 if quick else 10
    began = time.process_time()
    plain = [
        math.fsum(plain_goodput(cost_s, interval_s, rng) for _ in range(num_plain)) / num_plain
        for cost_s, interval_s in configurations
    ]
    plain_s = (time.process_time() - began) * NUM_RUNS / num_plain
    apart = max(abs(outcome.goodput - each) for outcome, each in zip(outcomes, plain, strict=True))
    return {
        "schema": 1,
        "configurations": len(configurations),
        "runs": NUM_RUNS,
        "largest_difference": apart,
        "goals": [
            {
                "name": "the article's sweep on one core, seconds",
                "value": ours_s,
                "against": {"plain_python_loop": plain_s},
                "goal": GOAL_S,
                "met": ours_s <= GOAL_S,
            }
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="one sweep instead of the median of five")
    options = parser.parse_args()
    result = measure(quick=options.quick)
    (goal,) = result["goals"]
    if options.json:
        print(json.dumps(result))
        return 0 if goal["met"] else 1
    plain_s = goal["against"]["plain_python_loop"]
    print(f"{goal['name']}: {goal['value']:.2f}, goal {goal['goal']:.0f}, met: {goal['met']}")
    print(f"  plain Python loop {plain_s:.1f} s ({plain_s / goal['value']:.0f} times as long)")
    return 0 if goal["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
