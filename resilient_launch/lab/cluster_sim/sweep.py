"""Every strategy over several seeds, on as many cores as there are; means with confidence intervals."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import fmean, stdev

from resilient_launch.lab.cluster_sim.engine import Shares, simulate
from resilient_launch.lab.cluster_sim.strategies import PERFECT, Imperfections, Strategy
from resilient_launch.lab.cluster_sim.workload import Workload

COMPONENTS = ("useful", "rework", "wait", "write", "read")


@dataclass(frozen=True, kw_only=True)
class Case:
    """What one row of a comparison simulates."""

    workload: Workload
    strategy: Strategy
    imperfections: Imperfections = PERFECT


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over seeds; the truth lies within ± ``half_width`` with 95 % confidence (NaN for a single seed)."""

    value: float
    half_width: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """One case over all its seeds."""

    case: Case
    shares: tuple[Shares, ...]

    def mean(self, component: str) -> Mean:
        """Of one of COMPONENTS, of ``waste``, or of a count."""
        return mean_of([float(getattr(share, component)) for share in self.shares])


def mean_of(values: Sequence[float]) -> Mean:
    if len(values) < 2:
        return Mean(value=values[0], half_width=math.nan)
    half_width = _student_t(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Mean(value=fmean(values), half_width=half_width)


def _student_t(freedom: int) -> float:
    """Two-sided 95 % point of Student's t, by its expansion around the normal's (Fisher and Cornish, 1960)."""
    if freedom <= 2:
        return (12.706, 4.303)[freedom - 1]
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def sweep(
    cases: Sequence[Case],
    *,
    num_seeds: int,
    days: float,
    num_processes: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Result]:
    """Simulate every case with seeds 0, 1, …, luck taken out; ``on_progress`` gets (done, total) simulations."""
    jobs = [(case, seed, days) for case in cases for seed in range(num_seeds)]
    found: list[Shares] = []
    if num_processes <= 1:
        for done, job in enumerate(jobs, 1):
            found.append(_one(job))
            on_progress(done, len(jobs))
    else:
        # Not forked: a child that copies the locks of a caller's other threads, torch's say, may die or stand still.
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(num_processes, mp_context=fresh) as pool:
            for done, shares in enumerate(pool.map(_one, jobs), 1):
                found.append(shares)
                on_progress(done, len(jobs))
    groups = [tuple(found[start : start + num_seeds]) for start in range(0, len(found), num_seeds)]
    return [Result(case=case, shares=shares) for case, shares in zip(cases, groups, strict=True)]


def _one(job: tuple[Case, int, float]) -> Shares:
    case, seed, days = job
    shares = simulate(case.workload, case.strategy, seed=seed, days=days, imperfections=case.imperfections)
    return shares.without_luck()
