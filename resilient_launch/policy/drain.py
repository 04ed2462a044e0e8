"""Which runs a maintenance touches, and how they come back; and what a time limit has to be to end before it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

FIT_MARGIN_S = 60
"""Between the shortened limit and the window: a job starts some seconds after it is submitted."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """A time in which nodes are needed for something else; seconds since the epoch.

    ``nodes`` None is every node; ``start`` None is now; ``end`` None is not known.
    """

    nodes: frozenset[str] | None
    start: float | None = None
    end: float | None = None


def is_touched(window: Window, *, nodes: Collection[str], end_time: float | None) -> bool:
    """Whether a job on ``nodes``, which Slurm would end at ``end_time`` (None: never), is in the window's way."""
    if window.nodes is not None and not window.nodes.intersection(nodes):
        return False
    return window.start is None or end_time is None or end_time > window.start


def comes_back(window: Window, *, now: float) -> tuple[bool, float | None]:
    """How a drained run queues again: (held, begin). Held until somebody releases it, where the end is not known."""
    if window.end is None or window.end <= now:
        return True, None
    return False, window.end


def fitting_limit_s(*, now: float, start: float, asked_s: float | None, least_s: float) -> float | None:
    """The longest time limit, in whole minutes, of a job that starts now and ends before ``start``.

    ``asked_s`` (None: unlimited) when that fits already; None when less than ``least_s`` would be left.
    """
    room_s = (start - now - FIT_MARGIN_S) // 60 * 60
    if asked_s is not None and asked_s <= room_s:
        return asked_s
    return room_s if room_s >= least_s else None
