"""Seconds between failures: exponential, Weibull, or the gaps of a trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from resilient_launch.core.errors import UsageError

Floats = NDArray[np.float64]


class Gaps(Protocol):
    """Where failures come from."""

    @property
    def mean_s(self) -> float:
        """Mean seconds between two failures."""

    def source(self, num_lanes: int, rng: np.random.Generator) -> GapSource:
        """Independent sequences of gaps, one for each of ``num_lanes`` runs."""


class GapSource(Protocol):
    def draw(self, lanes: NDArray[np.intp]) -> Floats:
        """The next gap of each lane named."""


@dataclass(frozen=True)
class Exponential:
    """Failures at a constant rate."""

    mean_s: float

    def __post_init__(self) -> None:
        _check_mean(self.mean_s)

    def source(self, num_lanes: int, rng: np.random.Generator) -> GapSource:
        def sample(count: int) -> Floats:
            return self.mean_s * rng.standard_exponential(count)

        return _Drawn(sample)


@dataclass(frozen=True)
class Weibull:
    """Failures that come in bursts (``shape`` below 1) or as parts wear out (above 1); each gap starts anew."""

    mean_s: float
    shape: float

    def __post_init__(self) -> None:
        _check_mean(self.mean_s)
        if not (math.isfinite(self.shape) and self.shape >= 0.1):
            raise UsageError(f"Weibull shape {self.shape:g}", why="must be a number from 0.1 up", hint="0.7")

    def source(self, num_lanes: int, rng: np.random.Generator) -> GapSource:
        scale_s = self.mean_s / math.gamma(1 + 1 / self.shape)

        def sample(count: int) -> Floats:
            return scale_s * rng.weibull(self.shape, count)

        return _Drawn(sample)


@dataclass(frozen=True)
class Trace:
    """Gaps that were observed, played in order from a random place, over and over."""

    gaps_s: tuple[float, ...]

    def __post_init__(self) -> None:
        bad = next((gap for gap in self.gaps_s if not (math.isfinite(gap) and gap > 0)), None)
        if bad is not None or not self.gaps_s:
            what = "a trace without failures" if bad is None else f"a gap of {bad:g} s in the trace"
            raise UsageError(what, why="a trace is a list of finite gaps above 0", hint="one duration a line: 3.1h")

    @property
    def mean_s(self) -> float:
        return math.fsum(self.gaps_s) / len(self.gaps_s)

    def source(self, num_lanes: int, rng: np.random.Generator) -> GapSource:
        return _Played(np.array(self.gaps_s), rng.integers(len(self.gaps_s), size=num_lanes))


class _Drawn:
    def __init__(self, sample: Callable[[int], Floats]) -> None:
        self._sample = sample

    def draw(self, lanes: NDArray[np.intp]) -> Floats:
        return self._sample(len(lanes))


class _Played:
    def __init__(self, gaps_s: Floats, at: NDArray[np.int64]) -> None:
        self._gaps_s, self._at = gaps_s, at

    def draw(self, lanes: NDArray[np.intp]) -> Floats:
        at = self._at[lanes]
        self._at[lanes] = (at + 1) % len(self._gaps_s)
        return self._gaps_s[at]


def _check_mean(mean_s: float) -> None:
    if not (math.isfinite(mean_s) and mean_s > 0):
        raise UsageError(f"MTBF of {mean_s:g} s", why="must be a finite time above 0", hint="3.1h")
