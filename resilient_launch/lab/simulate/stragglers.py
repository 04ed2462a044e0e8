"""What ranks that are slow now and then cost a synchronous job: a step ends when its slowest rank does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from resilient_launch.core.errors import UsageError

MOST_STEPS, MOST_RANKS = 10_000_000, 100_000_000
"""What fits memory and a minute, and more ranks than there are GPUs in one place."""


@dataclass(frozen=True, kw_only=True)
class StragglerRow:
    """``num_ranks`` ranks, each slow with ``probability`` in any step; times in units of a normal step."""

    num_ranks: int
    probability: float
    any_slow: float
    """Probability that a step has at least one slow rank."""
    step_time: float
    """Simulated mean."""
    formula: float


def straggler_table(
    ranks: Sequence[int], probabilities: Sequence[float], *, slow: float = 2.0, num_steps: int = 20_000, seed: int
) -> list[StragglerRow]:
    """A row for each count of ranks and each probability; a slow rank takes ``slow`` times as long.

    Only the number of slow ranks matters, so one binomial draw stands for all ranks of a step. Raises UsageError for
    values out of range.
    """
    for num_ranks in ranks:
        if not 1 <= num_ranks <= MOST_RANKS:
            raise UsageError(f"{num_ranks:,} ranks", why=f"must be from 1 to {MOST_RANKS:,}", hint="--ranks 512")
    for probability in probabilities:
        if not 0 <= probability <= 1:
            raise UsageError(f"probability {probability:g}", why="must be from 0 to 1", hint="0.002")
    if not (math.isfinite(slow) and slow >= 1):
        raise UsageError(f"slow factor {slow:g}", why="must be a finite number from 1 up", hint="2.0")
    if not 1 <= num_steps <= MOST_STEPS:
        raise UsageError(f"{num_steps:,} steps", why=f"must be from 1 to {MOST_STEPS:,}", hint="--steps 20000")
    rng = np.random.default_rng(seed)
    rows = []
    for num_ranks in ranks:
        for probability in probabilities:
            num_slow = rng.binomial(num_ranks, probability, size=num_steps)
            any_slow = 1 - (1 - probability) ** num_ranks
            rows.append(
                StragglerRow(
                    num_ranks=num_ranks,
                    probability=probability,
                    any_slow=any_slow,
                    step_time=float(np.mean(np.where(num_slow > 0, slow, 1.0))),
                    formula=1 + (slow - 1) * any_slow,
                )
            )
    return rows
