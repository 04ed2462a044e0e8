"""What a run's own events say of its checkpoints and interruptions, and how sure that is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from resilient_launch.config import load
from resilient_launch.core.errors import RefusedError
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.interval_history import read_history, read_samples
from resilient_launch.job.site_history import prior_rate
from resilient_launch.policy.failure_rate import Rate, notice_share

_ALL = 2**31


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A median and the quartiles around it, in seconds."""

    count: int
    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample | None:
        """None where there are no values."""
        if not values:
            return None
        low, middle, high = statistics.quantiles(values, method="inclusive") if len(values) > 1 else [values[0]] * 3
        return cls(count=len(values), middle=middle, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class RunFit:
    """Inputs of the interval as one run shows them; None where it shows nothing."""

    name: str
    cost: Sample | None
    emergency: Sample | None
    restart: Sample | None
    drain: Sample | None
    slowdown: float
    """Share of speed lost while a checkpoint drains; 0 where none does."""
    rate: Rate
    notice: float
    num_interruptions: int
    exposure_s: float

    def as_json(self) -> dict[str, Any]:
        low_s, high_s = self.rate.mtbf_range_s()
        return {
            "run": self.name,
            **{
                name: asdict(each) if (each := getattr(self, name)) else None
                for name in ("cost", "emergency", "restart", "drain")
            },
            "slowdown": self.slowdown,
            "num_interruptions": self.num_interruptions,
            "exposure_s": self.exposure_s,
            "mtbf_s": self.rate.mtbf_s,
            "mtbf_range_s": [low_s, high_s],
            "notice": self.notice,
        }


def fit_run(paths: RunPaths) -> RunFit:
    """Fit the run in ``paths``. Raises RefusedError when there is no such run, or when it never began."""
    if not paths.config.exists():
        raise RefusedError(f"run {paths.name}", where=str(paths.directory), why="does not exist", hint="rlaunch status")
    history = read_history(paths, before=_ALL)
    if not history.stretches:
        raise RefusedError(
            f"run {paths.name}",
            why="has not begun, so there is nothing to measure",
            hint="rlaunch plan interval --write-cost 120s --mtbf 3.1h",
        )
    config = load(paths.config, frozen=True)
    samples = read_samples(paths)
    interrupted = [stretch for stretch in history.stretches if stretch.is_interrupted]
    exposure_s = math.fsum(stretch.length_s for stretch in history.stretches)
    prior = prior_rate(config.checkpoint, paths, config.nodes.max)
    return RunFit(
        name=paths.name,
        cost=Sample.of(samples.costs_s or samples.emergency_s),
        emergency=Sample.of(samples.emergency_s),
        restart=Sample.of(samples.restarts_s),
        drain=Sample.of(history.drains_s),
        slowdown=history.slowdown,
        rate=prior.observed(len(interrupted), exposure_s),
        notice=notice_share(sum(stretch.was_saved for stretch in interrupted), len(interrupted)),
        num_interruptions=len(interrupted),
        exposure_s=exposure_s,
    )
