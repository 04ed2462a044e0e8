"""What the jobs of a simulated cluster take for true: the truth, or estimates that observation corrects."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from resilient_launch.core.units import HOUR_S
from resilient_launch.lab.cluster_sim.strategies import Imperfections, Strategy
from resilient_launch.policy import stagger
from resilient_launch.policy.failure_rate import Rate, job_prior
from resilient_launch.policy.stagger import Sharer

RESOLVE_S = 4 * HOUR_S
"""How often estimated periods are solved anew."""
MAX_MOVE = 0.25
"""The most that one solution may move a period."""
NEWEST_WEIGHT = 0.3
"""Weight of the newest write time in the running mean."""


class Beliefs:
    """MTBF, write time and period of every job, in seconds, as the jobs know them at the moment."""

    def __init__(
        self, sharers: Sequence[Sharer], strategy: Strategy, rough: Imperfections, random: np.random.Generator
    ) -> None:
        self._true, self._strategy, self._rough, self._random = sharers, strategy, rough, random
        self.mtbf_s = [job.mtbf_s for job in sharers]
        self.write_s = [job.write_s for job in sharers]
        self._num_failures = [0] * len(sharers)
        if rough.estimates:
            self.mtbf_s = [mtbf_s * self._noise(rough.prior_sigma) for mtbf_s in self.mtbf_s]
            self.write_s = [write_s * self._noise(rough.write_sigma) for write_s in self.write_s]
        self._first_guess_s = [mtbf_s * job.weight for mtbf_s, job in zip(self.mtbf_s, sharers, strict=True)]
        self._total_weight = sum(job.weight for job in sharers)
        self._solved_at = 0.0
        self._periods: list[float] = []
        self.early_share = 1.0
        self._solve()

    def work_s(self, job: int) -> float:
        """How much work ``job`` does between two saves."""
        includes = self.write_s[job] if self._strategy.period_includes_write else 0.0
        return max(self._periods[job] - includes, 0.0)

    def on_failure(self, job: int, now: float) -> None:
        self._num_failures[job] += 1
        self._update(now)

    def on_save(self, job: int, now: float) -> None:
        if self._rough.estimates:
            measured = self._true[job].write_s * self._noise(self._rough.write_sigma)
            self.write_s[job] += NEWEST_WEIGHT * (measured - self.write_s[job])
        self._update(now)

    def _noise(self, sigma: float) -> float:
        return math.exp(sigma * self._random.standard_normal())

    def _update(self, now: float) -> None:
        if not self._rough.estimates or now - self._solved_at < RESOLVE_S:
            return
        self._solved_at = now
        num_all = sum(self._num_failures)
        for job, node_mtbf_s in enumerate(self._first_guess_s):
            own, weight = self._num_failures[job], self._true[job].weight
            node = Rate.prior(node_mtbf_s)
            if self._rough.shares_history:
                node = node.observed(num_all - own, (self._total_weight - weight) * now)
            self.mtbf_s[job] = job_prior(node, round(weight)).observed(own, now).mtbf_s
        self._solve()

    def _solve(self) -> None:
        believed = [
            Sharer(weight=job.weight, write_s=write_s, mtbf_s=mtbf_s)
            for job, write_s, mtbf_s in zip(self._true, self.write_s, self.mtbf_s, strict=True)
        ]
        if self._strategy.period == "joint":
            periods = stagger.joint_periods_s(believed)
        else:
            periods = [stagger.young_period_s(job.write_s, job.mtbf_s) for job in believed]
        if self._periods:
            periods = [
                min(max(new, old * (1 - MAX_MOVE)), old * (1 + MAX_MOVE))
                for new, old in zip(periods, self._periods, strict=True)
            ]
        self._periods = periods
        self.early_share = stagger.early_share(stagger.solo_load(believed))
