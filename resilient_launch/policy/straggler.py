"""Which ranks are persistently slower than their peers, from the time of their own work in windows of steps.

In a synchronous job every rank's step takes the same time, and the slow rank is the one that waits least: what is
compared is the time a rank works before it meets the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

WINDOW_STEPS = 50
NUM_WINDOWS = 3
"""So many windows running must tell the same."""
SCORE = 6.0
RATIO = 1.03
SLOWDOWN = 1.25
"""Everything is slower once the gang's median is this many times its usual one."""
_MAD_TO_SIGMA = 1.4826
_SMALLEST_SPREAD = 0.005
Windows = Sequence[Sequence[float]]
"""Of each window, oldest first, the median local work time of every rank, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What is slow: a rank, all of a node's ranks, or everything. ``ratio`` is against the gang's median, or, for
    everything, against the gang's usual one."""

    scope: Literal["rank", "node", "all"]
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    ratio: float


def flags(medians: Sequence[float]) -> list[bool]:
    """Which ranks stand out in one window: modified z-score above 6 and more than 3 % over the median.

    The spread is 1.4826 times the median absolute deviation, 0.5 % of the median at least. Two ranks can't tell which
    of them is the odd one.
    """
    middle = median(medians)
    spread = max(_MAD_TO_SIGMA * median(abs(value - middle) for value in medians), _SMALLEST_SPREAD * middle)
    if spread <= 0.0:
        return [False] * len(medians)
    return [(value - middle) / spread > SCORE and value > RATIO * middle for value in medians]


def judge(windows: Windows, usual_s: float | None, node_of: Mapping[int, str]) -> list[Finding]:
    """What the last windows say, given the gang's usual median and the node of every rank.

    ``usual_s`` is None until there is one. Fewer than three windows say nothing.
    """
    recent = windows[-NUM_WINDOWS:]
    if len(recent) < NUM_WINDOWS:
        return []
    found = []
    middles = [median(window) for window in recent]
    if usual_s and all(middle > SLOWDOWN * usual_s for middle in middles):
        found.append(Finding(scope="all", ranks=(), nodes=(), ratio=min(middles) / usual_s))
    flagged = [rank for rank, each in enumerate(zip(*(flags(window) for window in recent), strict=True)) if all(each)]
    for node in dict.fromkeys(node_of[rank] for rank in flagged):
        here = tuple(rank for rank in flagged if node_of[rank] == node)
        whole = {rank for rank in node_of if node_of[rank] == node} == set(here)
        ratio = median(window[rank] / middle for window, middle in zip(recent, middles, strict=True) for rank in here)
        found.append(
            Finding(scope="node" if whole and len(here) > 1 else "rank", ranks=here, nodes=(node,), ratio=ratio)
        )
    return found


def usual(middles: Sequence[float]) -> float | None:
    """The gang's usual median, from those of its earlier windows: None until there are enough to tell."""
    return median(middles) if len(middles) >= 2 * NUM_WINDOWS else None
