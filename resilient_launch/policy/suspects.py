"""Which nodes a run should stay away from for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FORGET_S = 24 * 3600.0
"""By then somebody has repaired the node, or Slurm has drained it."""
CRASHES = 2


@dataclass(frozen=True, kw_only=True)
class Blame:
    """What one attempt's end says of nodes: ``certain`` went silent or failed a check; ``possible`` is where the first
    rank failed in a way that a machine can cause (a signal, a driver's or the network's error)."""

    ended_at: float
    certain: tuple[str, ...] = ()
    possible: str = ""


def suspects(blames: Sequence[Blame], *, now: float) -> list[str]:
    """Nodes to avoid, the most recently blamed first: the certain ones, and those that were possible twice."""
    found: dict[str, float] = {}
    counts: dict[str, int] = {}
    for blame in blames:
        if now - blame.ended_at > FORGET_S:
            continue
        counts[blame.possible] = counts.get(blame.possible, 0) + 1
        often = [blame.possible] if blame.possible and counts[blame.possible] >= CRASHES else []
        for node in (*blame.certain, *often):
            found[node] = blame.ended_at
    return sorted(found, key=lambda node: -found[node])
