"""The form that benchmarks share: ``--json`` and ``--quick`` on the command line, goals with figures as result."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One figure. ``against`` is what it was measured against in the same run, None where it stands alone."""

    name: str
    value: float
    against: float | None
    goal: float
    met: bool

    def __str__(self) -> str:
        against = "" if self.against is None else f" against {self.against:.4g}"
        return f"{self.name}: {self.value:.4g}{against} (goal {self.goal:.4g}): {'met' if self.met else 'MISSED'}"


def ratio(name: str, value: float, against: float, limit: float) -> Goal:
    """The goal that ``value`` be at most ``limit`` times ``against``."""
    return Goal(name=name, value=value, against=against, goal=limit, met=value <= limit * against)


def at_most(name: str, value: float, limit: float, *, against: float | None = None) -> Goal:
    """The goal that ``value`` be at most ``limit``; ``against`` is what was taken off to get it."""
    return Goal(name=name, value=value, against=against, goal=limit, met=value <= limit)


def main(description: str | None, measure: Callable[[bool], Sequence[Goal]]) -> None:
    """Measure (``measure`` is told whether to be quick), print, and exit with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    options = parser.parse_args()
    goals = measure(options.quick)
    if options.json:
        print(json.dumps({"schema": 1, "goals": [asdict(goal) for goal in goals]}))
    else:
        print("\n".join(map(str, goals)))
    sys.exit(0 if all(goal.met for goal in goals) else 1)
