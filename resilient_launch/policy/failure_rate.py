"""How often a job is interrupted: a Gamma posterior over what was observed, and a Beta one over usable notices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from resilient_launch.core.errors import UsageError
from resilient_launch.core.units import DAY_S

FAILURES_PER_1000_NODE_DAYS = 6.5
"""What a node of a large research cluster showed (Kokolis et al. 2024, RSC-1); the prior where nobody knows better."""
MOST_NODES, MOST_FAILURES = 10_000_000, 100_000
"""Beyond these a number of nodes, or of failures per 1000 node-days, is a slip of the pen."""
PRIOR_FAILURES = 1.0
"""How many observed failures the prior's word is worth."""
MOST_SHARED_FAILURES = 4.0
"""The most that other runs' word is worth: they share the nodes but not the code, so a run's own failures soon prevail.

On nodes that are all alike a wrong rate then costs a third of what it costs with a weight of 1.
"""


def mtbf_of_nodes_s(num_nodes: int, failures_per_1000_node_days: float = FAILURES_PER_1000_NODE_DAYS) -> float:
    """Mean seconds between failures of a job on ``num_nodes`` nodes. Raises UsageError for absurd values."""
    if not 1 <= num_nodes <= MOST_NODES:
        raise UsageError(f"{num_nodes:.3g} nodes", why=f"must be from 1 to {MOST_NODES:,}", hint="--nodes 16")
    if not 0 < failures_per_1000_node_days <= MOST_FAILURES:
        raise UsageError(
            f"{failures_per_1000_node_days:g} failures per 1000 node-days",
            why=f"must be a number above 0, {MOST_FAILURES:,} at most",
            hint=f"{FAILURES_PER_1000_NODE_DAYS:g}",
        )
    return 1000 * DAY_S / failures_per_1000_node_days / num_nodes


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A Gamma distribution of a rate: as if ``events`` had been seen in ``exposure_s`` seconds."""

    events: float
    exposure_s: float

    @classmethod
    def prior(cls, mtbf_s: float, weight: float = PRIOR_FAILURES) -> Rate:
        """What is believed before anything is seen: an MTBF, worth ``weight`` failures."""
        return cls(events=weight, exposure_s=weight * mtbf_s)

    def observed(self, num_events: float, exposure_s: float) -> Rate:
        """After ``num_events`` more in ``exposure_s`` more seconds; old ones may count for less than one each.

        Time that is still running, or ended without an interruption (finished, time limit), counts as exposure only.
        """
        return Rate(events=self.events + num_events, exposure_s=self.exposure_s + max(exposure_s, 0.0))

    @property
    def per_second(self) -> float:
        return self.events / self.exposure_s

    @property
    def mtbf_s(self) -> float:
        """Mean seconds between events at the expected rate."""
        return self.exposure_s / self.events

    def quantile(self, share: float) -> float:
        """The rate per second below which ``share`` of the distribution lies, to about nine digits."""
        low, high = -700.0, math.log(self.events + 12 * (1 + math.sqrt(self.events)))
        for _ in range(100):
            middle = (low + high) / 2
            if _lower_gamma(self.events, math.exp(middle)) < share:
                low = middle
            else:
                high = middle
        return math.exp(high) / self.exposure_s

    def mtbf_range_s(self, level: float = 0.9) -> tuple[float, float]:
        """The MTBF's credible interval, shortest first."""
        tail = (1 - level) / 2
        slow, fast = self.quantile(tail), self.quantile(1 - tail)
        return 1 / fast, 1 / slow if slow > 0 else math.inf


def nodes_rate(num_failures: int, node_s: float, *, prior: float = FAILURES_PER_1000_NODE_DAYS) -> Rate:
    """One node's rate after ``num_failures`` in ``node_s`` node-seconds, from a belief in ``prior``."""
    return Rate.prior(mtbf_of_nodes_s(1, prior)).observed(num_failures, node_s)


def job_prior(node: Rate, num_nodes: int) -> Rate:
    """What a job on ``num_nodes`` nodes believes of itself beforehand, given what is known of ``node``."""
    return Rate.prior(node.mtbf_s / num_nodes, min(node.events, MOST_SHARED_FAILURES))


def notice_share(num_usable: int, num_interruptions: int, *, prior: float = 0.0, weight: float = 1.0) -> float:
    """Expected share of interruptions with a usable notice: the Beta posterior's mean.

    ``prior`` is worth ``weight`` interruptions. It is 0 where nothing is known, because to trust a notice that does
    not come loses more than to save too often.
    """
    return (prior * weight + num_usable) / (weight + num_interruptions)


def _lower_gamma(shape: float, x: float) -> float:
    """The regularised lower incomplete gamma function, by its series; ``x`` up to a dozen deviations above the mean."""
    term = total = 1 / shape
    number = 0
    while term > total * 1e-16:
        number += 1
        term *= x / (shape + number)
        total += term
    return min(total * math.exp(max(shape * math.log(x) - x - math.lgamma(shape), -745.0)), 1.0)
