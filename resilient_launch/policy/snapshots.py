"""Which snapshot in the nodes' memory a restarted worker group goes on from, or why it reads shared storage instead."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from resilient_launch.core.ids import CheckpointId


@dataclass(frozen=True, order=True)
class Mark:
    """One snapshot, the same on every rank. Ordered by age in the lineage.

    ``number`` counts the captures of its worker group, so that two of one step are told apart.
    """

    id: CheckpointId
    number: int


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What one rank has: its snapshots, and why there is none where there is none."""

    marks: Collection[Mark] = ()
    why_none: str = ""


@dataclass(frozen=True, kw_only=True)
class Pick:
    """Snapshots to try, newest first, and in words why these, or why none."""

    marks: tuple[Mark, ...] = field(default=())
    why: str


def pick(holdings: Sequence[Holding], *, shared: CheckpointId | None, passed_over: Collection[str] = ()) -> Pick:
    """What to try of the ``holdings`` of all ranks, in rank order.

    Only what is complete on every rank counts, and only what is at least as new in the lineage as ``shared``, the
    newest checkpoint that a resume could take from shared storage: that one stays the truth. ``passed_over`` are names
    from which restarts have led nowhere.
    """
    for rank, holding in enumerate(holdings):
        if not holding.marks:
            return Pick(why=f"rank {rank} has no snapshot in memory" + _because(holding.why_none))
    common = set(holdings[0].marks).intersection(*(holding.marks for holding in holdings[1:]))
    if not common:
        return Pick(why="no snapshot in memory is complete on every rank")
    newest = max(common)
    fresh = sorted((mark for mark in common if shared is None or mark.id >= shared), reverse=True)
    if not fresh:
        return Pick(why=f"{shared} on shared storage is newer than {newest.id} in memory")
    good = tuple(mark for mark in fresh if str(mark.id) not in passed_over)
    if not good:
        return Pick(why=f"restart after restart from {newest.id} in memory led nowhere")
    if shared is None:
        beside = "there is no checkpoint on shared storage"
    elif good[0].id == shared:
        beside = "shared storage has the same"
    else:
        beside = f"the newest on shared storage is {shared}"
    return Pick(marks=good, why=f"complete on every rank; {beside}")


def _because(why: str) -> str:
    return f": {why}" if why else ""
