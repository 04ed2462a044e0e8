"""How far apart two loss curves may be that are not equal by nature: as far as another seed puts them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FACTOR = 2.0
"""An unequal run is one more draw beside the seeds; the largest of a few distances is a low estimate of the spread."""
Curve = Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """``limit`` in units of the loss, from ``num_runs`` uninterrupted runs of different seeds."""

    limit: float
    num_runs: int

    @property
    def test(self) -> str:
        """The test in words."""
        return (
            f"root mean square difference of the loss, at most {FACTOR:g} times the largest between "
            f"{self.num_runs} uninterrupted runs of different seeds ({self.limit:.4g})"
        )


def distance(one: Curve, two: Curve, *, after: int = 0) -> float | None:
    """Root mean square difference over the steps beyond ``after`` that both have; None where there are none."""
    common = [step for step in one if step in two and step > after]
    if not common:
        return None
    return math.sqrt(sum((one[step] - two[step]) ** 2 for step in common) / len(common))


def tolerance(curves: Sequence[Curve], *, after: int = 0) -> Tolerance | None:
    """From the curves of uninterrupted runs; None where two of them have no step in common."""
    distances = [distance(one, two, after=after) for one, two in itertools.combinations(curves, 2)]
    known = [each for each in distances if each is not None]
    return Tolerance(limit=FACTOR * max(known), num_runs=len(curves)) if known else None
