"""The interval that a running job keeps choosing for itself: what was measured in, an interval and its reason out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from resilient_launch.core.causes import Cause
from resilient_launch.core.units import DAY_S, MINUTE_S, format_duration
from resilient_launch.policy.failure_rate import PRIOR_FAILURES, Rate, notice_share
from resilient_launch.policy.hazard import Hazard
from resilient_launch.policy.interval import exact, move

FALLBACK_S = 10.0 * MINUTE_S
"""The interval where nothing has been measured."""
LONGEST_S = 1.0 * DAY_S
SHORTEST_S = 1.0
MIN_COST_S = 0.001
"""No save is taken for free: clocks and polls are no finer than this."""
MEMORY = 0.95
"""What each later interruption leaves of an earlier one's weight: failure rates drift, and old ones must not bind."""
NUM_COSTS = 9
"""How many of the newest checkpoints say what one costs; their median, so that one slow write moves nothing."""

INTERRUPTIONS = frozenset(
    {Cause.PREEMPTED, Cause.MAINTENANCE, Cause.NODE_FAILURE, Cause.HANG, Cause.OUT_OF_MEMORY, Cause.CRASH}
)
"""Ends that come at random. Finished, cancelled, yielded and the time limit are chosen or known beforehand."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """One piece of running time: an attempt, or what a worker-group restart left of it.

    ``cause`` is None while it still runs. ``was_saved`` says that a notice came and the work was saved in time.
    ``start_age_s`` is the attempt's age when the stretch began.
    """

    length_s: float
    cause: Cause | None
    was_saved: bool = False
    start_age_s: float = 0.0

    @property
    def is_interrupted(self) -> bool:
        return self.cause in INTERRUPTIONS

    def beyond_s(self, age_s: float) -> float:
        """How much of it the attempt spent older than ``age_s``."""
        return max(self.start_age_s + self.length_s - max(age_s, self.start_age_s), 0.0)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All that a decision rests on. Times are seconds; ``prior_failures`` is what the prior's word is worth.

    ``costs_s`` are the newest checkpoints' blocking times, oldest first, empty before the first one. ``drains_s`` is
    how long each then went on in the background, empty where none does, and ``slowdown`` the share of speed that
    training lost meanwhile. ``exempt_s`` is the age up to which an attempt is never preempted.
    """

    current_s: float
    prior_mtbf_s: float
    stretches: Sequence[Stretch]
    prior_failures: float = PRIOR_FAILURES
    costs_s: Sequence[float] = ()
    drains_s: Sequence[float] = ()
    slowdown: float = 0.0
    exempt_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The interval from now on, the one it moves towards, what that rests on, and why, in words.

    ``interval_s``, ``target_s`` and ``rate`` are for the risk that is always there; ``interval_at`` adds the rest.
    ``cost_s`` is what a checkpoint takes from training: what it blocks, and what the drain of ``drain_s`` slows.
    """

    interval_s: float
    target_s: float
    cost_s: float | None
    drain_s: float
    rate: Rate
    notice: float
    hazard: Hazard
    num_interruptions: int
    exposure_s: float
    why: str

    def interval_at(self, age_s: float) -> float:
        """The interval for an attempt of this age: a known jump of the risk is followed at once, and in full."""
        rate = self.hazard.rate(age_s)
        if self.cost_s is None or rate == self.hazard.base_rate:
            return self.interval_s
        # Where failures come faster than saves, none pays and the optimum is infinite.
        usual_s, best_s = (
            min(exact(self.cost_s, mtbf_s, notice=self.notice), LONGEST_S) for mtbf_s in (self.rate.mtbf_s, 1 / rate)
        )
        return min(max(self.interval_s * best_s / usual_s, SHORTEST_S, self.drain_s), LONGEST_S)


def choose(measured: Measured) -> Choice:
    """The next interval: the best one for what was measured, at most 25 % from the one that stands."""
    interrupted = [stretch for stretch in measured.stretches if stretch.is_interrupted]
    weighted = _weigh(measured.stretches)
    hazard, rate = _hazard(measured, weighted)
    notice = notice_share(sum(stretch.was_saved for stretch in interrupted), len(interrupted))
    exposure_s = math.fsum(stretch.length_s for stretch in measured.stretches)
    mtbf_s = rate.mtbf_s
    current_s = measured.current_s if math.isfinite(measured.current_s) else FALLBACK_S
    current_s = min(max(current_s, SHORTEST_S), LONGEST_S)
    blocking_s = max(median(measured.costs_s[-NUM_COSTS:]), MIN_COST_S) if measured.costs_s else None
    drain_s = min(median(measured.drains_s[-NUM_COSTS:]), LONGEST_S) if measured.drains_s else 0.0
    slowdown = min(max(measured.slowdown, 0.0), 1.0) if math.isfinite(measured.slowdown) else 0.0
    cost_s = None if blocking_s is None else blocking_s + slowdown * drain_s
    if cost_s is None:
        target_s, interval_s = current_s, current_s
        why = f"no checkpoint has been measured yet: {format_duration(interval_s)} stands"
    else:
        # One write at a time: no save is due before the one before it is durable.
        target_s = min(max(exact(cost_s, mtbf_s, notice=notice), SHORTEST_S, drain_s), LONGEST_S)
        interval_s = min(max(move(current_s, target_s), SHORTEST_S), LONGEST_S)
        why = (
            f"a checkpoint {_cost_text(blocking_s or 0.0, drain_s, slowdown)}, "
            f"{len(interrupted)} interruptions in {_text(exposure_s)} make an MTBF of {_text(mtbf_s)}, "
            f"{notice:.0%} with a usable notice: best is {_text(target_s)}"
        )
        if not math.isclose(interval_s, target_s, rel_tol=1e-9):
            why += f", {_text(interval_s)} is as far as one update goes from {_text(current_s)}"
    return Choice(
        interval_s=interval_s,
        target_s=target_s,
        cost_s=cost_s,
        drain_s=drain_s,
        rate=rate,
        notice=notice,
        hazard=hazard,
        num_interruptions=len(interrupted),
        exposure_s=exposure_s,
        why=why,
    )


def _cost_text(blocking_s: float, drain_s: float, slowdown: float) -> str:
    blocks = f"blocks for {_text(blocking_s)}"
    return f"{blocks} and drains for {_text(drain_s)} at {slowdown:.0%} of the speed lost" if drain_s > 0 else blocks


def _weigh(stretches: Sequence[Stretch]) -> list[tuple[float, Stretch]]:
    """Every stretch with its weight, newest first."""
    weighted, weight = [], 1.0
    for stretch in reversed(stretches):
        weighted.append((weight, stretch))
        if stretch.is_interrupted:
            weight *= MEMORY
    return weighted


def _hazard(measured: Measured, weighted: Sequence[tuple[float, Stretch]]) -> tuple[Hazard, Rate]:
    """The risk by age, and the posterior of the rate that is always there.

    Where a window is free of preemption, preemptions are counted apart, over the time that lies beyond it.
    """
    exempt_s = measured.exempt_s
    apart = [(weight, each) for weight, each in weighted if exempt_s > 0 and each.cause is Cause.PREEMPTED]
    num_apart = math.fsum(weight for weight, _ in apart)
    num_all = math.fsum(weight for weight, each in weighted if each.is_interrupted)
    exposure_s = math.fsum(weight * each.length_s for weight, each in weighted)
    rate = Rate.prior(measured.prior_mtbf_s, measured.prior_failures).observed(
        max(num_all - num_apart, 0.0), exposure_s
    )
    if exempt_s <= 0:
        return Hazard(base_rate=rate.per_second), rate
    beyond_s = math.fsum(weight * each.beyond_s(exempt_s) for weight, each in weighted)
    # Slurm may preempt a little before the window is over by our clock; the rate must stay finite.
    late_rate = num_apart / max(beyond_s, MINUTE_S)
    return Hazard(base_rate=rate.per_second, late_rate=late_rate, exempt_s=exempt_s), rate


def _text(seconds: float) -> str:
    """Three digits are all that a reader of a reason wants."""
    if seconds <= 0:
        return "0s"
    digits = 2 - math.floor(math.log10(seconds))
    return format_duration(round(seconds, max(digits, 0)))
