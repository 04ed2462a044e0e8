"""When to save where the risk is known to change: a window free of preemption, a time limit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from resilient_launch.policy.interval import exact


@dataclass(frozen=True, kw_only=True)
class Hazard:
    """The risk of an attempt by its age in seconds.

    ``base_rate`` is always there (per second: hardware, crashes); ``late_rate`` comes on top once ``exempt_s`` have
    passed (preemption after a partition's exempt time). ``limit_s`` is the age at which the attempt ends for certain.
    """

    base_rate: float
    late_rate: float = 0.0
    exempt_s: float = 0.0
    limit_s: float = math.inf

    def rate(self, age_s: float) -> float:
        """Interruptions per second at this age, the certain end aside."""
        return self.base_rate + (self.late_rate if age_s >= self.exempt_s else 0.0)

    def edges(self) -> tuple[float, ...]:
        """Ages at which the risk jumps up: a checkpoint should be durable just before each."""
        ends = [self.exempt_s] if self.late_rate > 0 and self.exempt_s > 0 else []
        return (*ends, *([self.limit_s] if math.isfinite(self.limit_s) else []))


def next_save(
    hazard: Hazard, *, age_s: float, saved_age_s: float, cost_s: float, interval_s: float | None = None
) -> float:
    """The age at which the next save should begin, for an attempt of age ``age_s`` last saved at ``saved_age_s``.

    Between edges the interval is the best one for the risk at that age, or ``interval_s``. Before an edge the saves
    are spread evenly so that the last is durable when the edge comes. Never earlier than ``age_s``.
    """
    wanted_s = interval_s if interval_s is not None else _best(hazard.rate(age_s), cost_s)
    for edge_s in hazard.edges():
        # The last moment to begin a save that is durable in time.
        landing_s = edge_s - cost_s
        # A save that was begun to land here may end a breath early or late; it is not begun again.
        if landing_s <= saved_age_s + cost_s or landing_s <= age_s - cost_s:
            continue
        cycles = max(1, round((landing_s - saved_age_s + cost_s) / (wanted_s + cost_s)))
        step_s = (landing_s - saved_age_s + cost_s) / cycles - cost_s
        return max(age_s, saved_age_s + step_s)
    return max(age_s, saved_age_s + wanted_s)


def schedule(hazard: Hazard, *, start_s: float, cost_s: float, until_s: float) -> list[float]:
    """The ages at which saves begin in an attempt that starts to train at ``start_s``, up to ``until_s``."""
    begins: list[float] = []
    saved_s = start_s
    while True:
        begin_s = next_save(hazard, age_s=saved_s, saved_age_s=saved_s, cost_s=cost_s)
        if begin_s + cost_s > min(until_s, hazard.limit_s) or begin_s <= saved_s:
            return begins
        begins.append(begin_s)
        saved_s = begin_s + cost_s


def _best(rate: float, cost_s: float) -> float:
    return exact(cost_s, 1 / rate) if rate > 0 else math.inf
