"""When a simulated job saves: at one interval, or by the risk that it knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import NamedTuple, Protocol

import numpy as np

from resilient_launch.lab.simulate.gaps import Floats
from resilient_launch.policy import hazard as policy
from resilient_launch.policy.hazard import Hazard

_LIVES = 40.0
"""No attempt of a simulation outlives this many mean lives: one in e^40 would."""


class Reached(NamedTuple):
    """Where attempts stand: saves that are durable, work they hold, and work done in all."""

    num_saves: Floats
    durable_s: Floats
    work_s: Floats


class Plan(Protocol):
    """Tells how far training gets. ``startup_s`` is the age at which an attempt began to train."""

    def reached(self, trained_s: Floats, cost_s: Floats, startup_s: float) -> Reached:
        """Where attempts stand after ``trained_s`` of training and saving."""

    def saves_for(self, work_s: Floats, startup_s: float) -> Floats:
        """How many saves it takes to have ``work_s`` done and durable, the one at the end included."""

    def saved_work(self, startup_s: float) -> Iterator[float]:
        """The work, in seconds since the attempt began to train, that each save in turn holds."""


@dataclass(frozen=True)
class Spaced:
    """The same work between saves always: a number of seconds, or an array with one for each run."""

    interval_s: float | Floats

    def reached(self, trained_s: Floats, cost_s: Floats, startup_s: float) -> Reached:
        num_saves = np.floor(trained_s / (self.interval_s + cost_s))
        durable_s = num_saves * self.interval_s
        work_s = np.minimum(trained_s - num_saves * cost_s, durable_s + self.interval_s)
        return Reached(num_saves, durable_s, work_s)

    def saves_for(self, work_s: Floats, startup_s: float) -> Floats:
        return np.ceil(work_s / self.interval_s)

    def saved_work(self, startup_s: float) -> Iterator[float]:
        return (number * float(self.interval_s) for number in count(1))


@dataclass(frozen=True)
class HazardAware:
    """The policy's own schedule for a risk that changes with the attempt's age."""

    hazard: Hazard
    cost_s: float

    def reached(self, trained_s: Floats, cost_s: Floats, startup_s: float) -> Reached:
        ends, held = _schedule(self.hazard, self.cost_s, startup_s)
        num_saves = np.searchsorted(ends, trained_s, side="right")
        work_s = np.minimum(trained_s - num_saves * self.cost_s, held[num_saves + 1])
        return Reached(num_saves.astype(float), held[num_saves], work_s)

    def saves_for(self, work_s: Floats, startup_s: float) -> Floats:
        held = _schedule(self.hazard, self.cost_s, startup_s)[1]
        return np.searchsorted(held, work_s, side="left").astype(float)

    def saved_work(self, startup_s: float) -> Iterator[float]:
        return iter(_schedule(self.hazard, self.cost_s, startup_s)[1][1:].tolist())


@lru_cache(maxsize=64)
def _schedule(hazard: Hazard, cost_s: float, startup_s: float) -> tuple[Floats, Floats]:
    """Training time at which save k is durable; the work that k saves hold, nothing first and all there is last."""
    rate = hazard.base_rate + hazard.late_rate
    horizon_s = startup_s + hazard.exempt_s + _LIVES / rate
    begins = policy.schedule(hazard, start_s=startup_s, cost_s=cost_s, until_s=horizon_s)
    ends = np.array(begins) + cost_s - startup_s
    held = ends - cost_s * np.arange(1, len(ends) + 1)
    return ends, np.concatenate([[0.0], held, [np.inf]])
