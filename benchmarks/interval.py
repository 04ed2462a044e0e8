"""How near the self-solved checkpoint interval comes to that of an oracle who knows the true failure rate.

``python -m benchmarks.interval [--json] [--quick]``. Random jobs with drifting rates, attempts that still run or that
ended by themselves (censored), notices, and a prior that is wrong; after 5 and after 10 observed failures the regret is
what the interval adds to the oracle's overhead: time on the nodes beyond the useful, over the useful. That includes
restarts, which no interval saves; ``without_restarts`` has the regret where they cost nothing. ``--drift`` is the
factor that the rate changes by at most, up or down, over ten MTBFs. Exits with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import numpy as np

from resilient_launch.core.causes import Cause
from resilient_launch.core.units import HOUR_S, MINUTE_S
from resilient_launch.policy import interval
from resilient_launch.policy.auto_interval import FALLBACK_S, Measured, Stretch, choose

CHECKPOINTS = (5, 10)
"""After how many observed failures the regret is taken."""
GOALS = {5: 0.05, 10: 0.02}
MAX_UPDATES = 40
"""Checkpoints between two interruptions that are played; the interval stands still long before."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One job: its true rate at the start, how that drifts, and what it believes beforehand."""

    cost_s: float
    restart_s: float
    mtbf_s: float
    drift: float
    """Factor by which the rate changes over ten initial MTBFs."""
    notice: float
    normal_end_s: float
    """Mean time until an attempt ends by itself."""
    prior_mtbf_s: float

    def rate(self, at_s: float) -> float:
        return float(self.drift ** (min(at_s / (10 * self.mtbf_s), 2.0))) / self.mtbf_s


@dataclass(frozen=True, kw_only=True)
class Regrets:
    ours: float
    ours_without_restarts: float
    fixed: float
    naive: float


def draw(rng: np.random.Generator, max_drift: float) -> Scenario:
    mtbf_s = float(np.exp(rng.uniform(np.log(0.5 * HOUR_S), np.log(48 * HOUR_S))))
    return Scenario(
        cost_s=float(np.exp(rng.uniform(np.log(2), np.log(min(600, mtbf_s / 10))))),
        restart_s=float(np.exp(rng.uniform(np.log(MINUTE_S), np.log(15 * MINUTE_S)))),
        mtbf_s=mtbf_s,
        drift=float(np.exp(rng.uniform(-np.log(max_drift), np.log(max_drift)))),
        notice=float(rng.uniform(0.2, 0.9)) if rng.random() < 0.5 else 0.0,
        normal_end_s=mtbf_s * float(rng.uniform(1, 4)),
        prior_mtbf_s=mtbf_s * float(np.exp(rng.normal(0, 0.5))),
    )


def overhead(scenario: Scenario, interval_s: float, mtbf_s: float) -> float:
    kept = interval.goodput(
        interval_s,
        cost_s=scenario.cost_s,
        mtbf_s=mtbf_s,
        restart_s=scenario.restart_s,
        notice=scenario.notice,
        emergency_s=scenario.cost_s if scenario.restart_s else 0.0,
    )
    return 1 / kept - 1


def play(scenario: Scenario, rng: np.random.Generator) -> dict[int, Regrets]:
    """Live through eleven failures; the regrets a random while after the fifth and the tenth."""
    stretches: list[Stretch] = []
    regrets: dict[int, Regrets] = {}
    now_s, interval_s, num_failures, num_starts = 0.0, FALLBACK_S, 0, 1

    def solve(running_s: float) -> float:
        measured = Measured(
            current_s=interval_s,
            prior_mtbf_s=scenario.prior_mtbf_s,
            stretches=[*stretches, Stretch(length_s=running_s, cause=None)],
            costs_s=(scenario.cost_s,),
        )
        return choose(measured).interval_s

    while num_failures <= max(CHECKPOINTS):
        to_failure_s = float(rng.exponential(1 / scenario.rate(now_s)))
        to_end_s = float(rng.exponential(scenario.normal_end_s))
        length_s = min(to_failure_s, to_end_s)
        if num_failures in CHECKPOINTS and num_failures not in regrets:
            length_now_s = float(rng.uniform(0, length_s))
            regrets[num_failures] = _regrets(scenario, solve(length_now_s), now_s + length_now_s, num_starts)
        elapsed_s = 0.0
        for _ in range(MAX_UPDATES):
            elapsed_s += interval_s + scenario.cost_s
            if elapsed_s > length_s:
                break
            interval_s = solve(elapsed_s)
        now_s += length_s
        num_starts += 1
        failed = to_failure_s <= to_end_s
        saved = failed and rng.random() < scenario.notice
        cause = Cause.PREEMPTED if saved else Cause.CRASH if failed else Cause.TIME_LIMIT
        stretches.append(Stretch(length_s=length_s, cause=cause, was_saved=saved))
        num_failures += failed
        interval_s = solve(0.0)
    return regrets


def _regrets(scenario: Scenario, ours_s: float, now_s: float, num_starts: int) -> Regrets:
    mtbf_s = 1 / scenario.rate(now_s)
    best_s = interval.exact(scenario.cost_s, mtbf_s, notice=scenario.notice)

    def regret(interval_s: float, scenario: Scenario = scenario) -> float:
        return overhead(scenario, interval_s, mtbf_s) / overhead(scenario, best_s, mtbf_s) - 1

    return Regrets(
        ours=regret(ours_s),
        ours_without_restarts=regret(ours_s, replace(scenario, restart_s=0.0)),
        fixed=regret(30.0 * MINUTE_S),
        naive=regret(interval.young(scenario.cost_s, max(now_s, 1.0) / num_starts)),
    )


def measure(num_scenarios: int, seed: int, max_drift: float = 1.5) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    played = [play(draw(rng, max_drift), rng) for _ in range(num_scenarios)]
    goals: list[dict[str, Any]] = []
    table: dict[str, dict[str, float]] = {}
    for count in CHECKPOINTS:
        found = [each[count] for each in played]
        ours = [each.ours for each in found]
        table[str(count)] = {
            "self_solved": mean(ours),
            "self_solved_error": 1.96 * float(np.std(ours, ddof=1)) / math.sqrt(len(ours)),
            "self_solved_median": float(np.median(ours)),
            "self_solved_without_restarts": mean(each.ours_without_restarts for each in found),
            "fixed_30_min": mean(each.fixed for each in found),
            "young_time_by_starts": mean(each.naive for each in found),
        }
        against = {name: table[str(count)][name] for name in ("fixed_30_min", "young_time_by_starts")}
        goals.append(
            {
                "failures": str(count),
                "name": f"mean overhead regret after {count} failures",
                "value": mean(ours),
                "against": against,
                "goal": GOALS[count],
                "met": mean(ours) <= GOALS[count],
            }
        )
    return {
        "schema": 1,
        "scenarios": num_scenarios,
        "seed": seed,
        "max_drift": max_drift,
        "regret": table,
        "goals": goals,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="200 scenarios instead of 2000")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drift", type=float, default=1.5)
    options = parser.parse_args()
    result = measure(200 if options.quick else 2000, options.seed, options.drift)
    is_met = all(goal["met"] for goal in result["goals"])
    if options.json:
        print(json.dumps(result))
        return 0 if is_met else 1
    for goal in result["goals"]:
        against = ", ".join(f"{name} {value:.1%}" for name, value in goal["against"].items())
        strict = result["regret"][goal["failures"]]["self_solved_without_restarts"]
        print(f"{goal['name']}: {goal['value']:.2%}, goal {goal['goal']:.0%}, met: {goal['met']}")
        print(f"  {against}; ours without restarts {strict:.2%}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
