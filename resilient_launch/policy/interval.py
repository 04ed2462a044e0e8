"""How long to train between two checkpoints: the formulas, and one answer from measured costs.

Throughout, ``cost_s`` is how long one checkpoint keeps training waiting, ``mtbf_s`` the mean time between interruptions
of the job, ``restart_s`` what a restart takes, ``notice`` the share of interruptions that leave time to save first and
``emergency_s`` what that save takes. The formulas hold for any finite positive values (``notice`` from 0 to 1) and
never raise for those; ``Situation`` refuses everything else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from resilient_launch.core.errors import UsageError
from resilient_launch.core.units import DAY_S, format_duration

MAX_MOVE = 0.25
"""How far one update may move a running job's interval: measurements are noisy, and the optimum is flat."""
FLAT_LOSS = 0.01
"""How much goodput, relative to the best, counts as nothing lost."""
_LARGEST_EXPONENT = 700.0


def young(cost_s: float, mtbf_s: float) -> float:
    """Seconds of work between checkpoints to first order (Young 1974): √(2·cost·mtbf)."""
    return math.sqrt(2.0) * math.sqrt(cost_s) * math.sqrt(mtbf_s)


def daly(cost_s: float, mtbf_s: float) -> float:
    """The higher-order estimate (Daly 2006): a series below a cost of twice the MTBF, the MTBF above."""
    if cost_s / 2 >= mtbf_s:
        return mtbf_s
    share = cost_s / 2 / mtbf_s
    return young(cost_s, mtbf_s) * (1 + math.sqrt(share) / 3 + share / 9) - cost_s


def exact(cost_s: float, mtbf_s: float, *, notice: float = 0.0) -> float:
    """The interval of highest goodput for exponential gaps, where writes and restarts fail too.

    Without notice it is M·(1+W0(−e^(−1−δ/M))). With a share p the stationary point of the expected goodput gives
    M·(1+c+W0(−e^(−1−c−δ/M))), c = p/(1−p)·(e^(δ/M)−1). Neither restart nor emergency save moves it. Infinity when
    every interruption can be saved.
    """
    if notice >= 1.0:
        return math.inf
    ratio = cost_s / mtbf_s
    if ratio > _LARGEST_EXPONENT and notice > 0.0:
        return math.inf
    extra = notice / (1.0 - notice) * math.expm1(ratio) if notice > 0.0 else 0.0
    if ratio + extra < 1e-12:
        # The ratio itself may have underflowed; what the root would add is beyond a float's digits.
        return young(cost_s, mtbf_s) / math.sqrt(1.0 - notice)
    return mtbf_s * (extra + _one_plus_lambert(ratio + extra))


def first_order(cost_s: float, mtbf_s: float, *, notice: float = 0.0) -> float:
    """Young's interval where only the interruptions without a usable notice lose work: √(2δM/(1−p))."""
    return math.inf if notice >= 1.0 else young(cost_s, mtbf_s) / math.sqrt(1.0 - notice)


def goodput(
    interval_s: float,
    *,
    cost_s: float,
    mtbf_s: float,
    restart_s: float = 0.0,
    notice: float = 0.0,
    emergency_s: float = 0.0,
) -> float:
    """Useful share of the time on the nodes, for exponential gaps: expected work over expected time of a cycle."""
    work, cost = interval_s / mtbf_s, cost_s / mtbf_s
    whole = work + cost
    if whole < 1e-12:
        kept = 1.0 / (1.0 + cost_s / interval_s)
    else:
        completed = (1.0 - notice) * work * math.exp(-whole) if whole < _LARGEST_EXPONENT else 0.0
        kept = (completed - notice * math.expm1(-work)) / -math.expm1(-whole)
    restarted = math.exp(-restart_s / mtbf_s)
    # Infinity times zero is no number: neither a hopeless restart nor a notice that never comes has a say.
    saving = notice * (emergency_s / mtbf_s) * restarted if notice > 0 and restarted > 0 else 0.0
    return kept * restarted / (1.0 + saving)


def first_order_waste(interval_s: float, *, cost_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Overhead per unit of useful work when failures strike training alone: δ/T + (T/2+R)/M."""
    return cost_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s


def background(*, stall_s: float, slowdown: float, drain_s: float, mtbf_s: float) -> float:
    """The interval for background writes: a snapshot stalls training, then drains while it runs slower.

    ``slowdown`` is the share of speed lost while draining, 0 to 1. Never below the drain: one write at a time.
    """
    return max(drain_s, young(stall_s + slowdown * drain_s, mtbf_s))


def background_waste(
    interval_s: float, *, stall_s: float, slowdown: float, drain_s: float, mtbf_s: float, restart_s: float = 0.0
) -> float:
    """Overhead to first order of background writes: a snapshot counts only once it is durable, a drain later."""
    return (stall_s + slowdown * drain_s) / interval_s + (interval_s / 2 + drain_s + restart_s) / mtbf_s


def misjudged(factor: float) -> float:
    """What a rate wrong by ``factor`` adds to the best overhead, as a share of it: ½(√c+1/√c)−1."""
    return (math.sqrt(factor) + 1 / math.sqrt(factor)) / 2 - 1


def effective_training_time(
    *, interval_s: float, cost_s: float, num_nodes: int, failures_per_1000_node_days: float, restart_s: float
) -> float:
    """Expected share of wall-clock, queue included, that trains (Kokolis et al. 2024): (1−N·r·(u0+Δ/2))/(1+w/Δ)."""
    per_second = num_nodes * failures_per_1000_node_days / (1000 * DAY_S)
    return (1 - per_second * (restart_s + interval_s / 2)) / (1 + cost_s / interval_s)


def move(current_s: float, target_s: float, limit: float = MAX_MOVE) -> float:
    """``target_s``, or as near to it as one update may come from ``current_s``."""
    return min(max(target_s, current_s * (1 - limit)), current_s * (1 + limit))


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What the interval depends on. Raises UsageError for values that no job can have.

    ``cost_s`` is the blocking part of a checkpoint; ``drain_s`` and ``slowdown`` describe a background write.
    """

    cost_s: float
    mtbf_s: float
    restart_s: float = 0.0
    notice: float = 0.0
    emergency_s: float | None = None
    drain_s: float = 0.0
    slowdown: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("write cost", self.cost_s), ("MTBF", self.mtbf_s)):
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name} of {value:g} s", why="must be a finite time above 0", hint="120s")
        others = (("restart", self.restart_s), ("drain", self.drain_s), ("emergency save", self.emergency_s or 0.0))
        for name, value in others:
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} of {value:g} s", why="must be a finite time, 0 or more", hint="10m")
        for name, value in (("notice", self.notice), ("slowdown", self.slowdown)):
            if not 0 <= value <= 1:
                raise UsageError(f"{name} of {value:g}", why="is a share, from 0 to 1", hint="0.75")

    @property
    def effective_cost_s(self) -> float:
        """What one checkpoint takes away from training: the stall, and the speed lost while it drains."""
        return self.cost_s + self.slowdown * self.drain_s

    @property
    def best_s(self) -> float:
        """The interval of highest goodput, at least the drain; infinity when every interruption can be saved."""
        return max(self.drain_s, exact(self.effective_cost_s, self.mtbf_s, notice=self.notice))

    def goodput_at(self, interval_s: float) -> float:
        """Expected useful share of the time on the nodes with ``interval_s`` of work between checkpoints.

        Work done while a snapshot drains is lost with it, so each interruption without notice costs one drain more.
        """
        emergency_s = self.effective_cost_s if self.emergency_s is None else self.emergency_s
        return goodput(
            interval_s,
            cost_s=self.effective_cost_s,
            mtbf_s=self.mtbf_s,
            restart_s=self.restart_s + (1 - self.notice) * self.drain_s,
            notice=self.notice,
            emergency_s=emergency_s,
        )

    def flat_region(self, loss: float = FLAT_LOSS) -> tuple[float, float]:
        """The shortest and the longest interval whose goodput is within ``loss``, relative, of the best.

        Goodput rises up to the best interval and falls after it, so bisection finds both ends. Infinity where no
        interval is too long, because a notice saves nearly everything.
        """
        best_s = self.best_s
        if math.isinf(best_s):
            best_s = 40 * self.mtbf_s
        wanted = (1 - loss) * self.goodput_at(best_s)
        low = max(_crossing(self, wanted, best_s, best_s * 1e-6), self.drain_s)
        far_s = 1e4 * max(best_s, self.mtbf_s)
        high = _crossing(self, wanted, best_s, far_s)
        return low, math.inf if high >= far_s else high

    def oddity(self) -> str | None:
        """What is absurd about these values, in words; None when nothing is. They still have an answer."""
        if self.mtbf_s <= self.effective_cost_s:
            return (
                f"the MTBF ({format_duration(self.mtbf_s)}) is not above the cost of one checkpoint "
                f"({format_duration(self.effective_cost_s)}): most checkpoints will not complete"
            )
        if self.restart_s >= self.mtbf_s:
            return (
                f"the MTBF ({format_duration(self.mtbf_s)}) is not above the restart time "
                f"({format_duration(self.restart_s)}): most restarts will not complete"
            )
        return None


def _one_plus_lambert(ratio: float) -> float:
    """1+W0(−e^(−1−ratio)): the q between 0 and 1 with −q−ln(1−q) = ratio. Exact near the branch point too."""
    q = min(math.sqrt(2 * ratio), -math.expm1(-1 - min(ratio, _LARGEST_EXPONENT)))
    if q >= 1.0:
        return 1.0
    # Convex and increasing, and the start is never below the root: Newton goes down to it and cannot leave (0, 1).
    for _ in range(60):
        # The logarithm cancels near 0, so the series it stands for is summed there.
        value = sum(q**power / power for power in range(2, 10)) if q < 0.01 else -q - math.log1p(-q)
        following = q - (value - ratio) * (1 - q) / q
        if not 0 < following < q:
            break
        q = following
    return q


def _crossing(situation: Situation, wanted: float, inside_s: float, outside_s: float) -> float:
    """Where goodput crosses ``wanted`` between an interval that reaches it and a far one; that one if it does too."""
    if situation.goodput_at(outside_s) >= wanted:
        return outside_s
    for _ in range(80):
        middle_s = math.sqrt(inside_s) * math.sqrt(outside_s)
        if situation.goodput_at(middle_s) >= wanted:
            inside_s = middle_s
        else:
            outside_s = middle_s
    return inside_s
