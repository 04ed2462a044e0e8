"""Which checkpoints to keep: values in, one flag each out. Nothing is read or removed here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from resilient_launch.core.errors import UsageError
from resilient_launch.core.ids import CheckpointId


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One published checkpoint; ``is_verified`` when its content is known to be what was written.

    ``parent`` is what its training went on from or saved before it, None where nobody knows. ``saved_at`` is
    wall-clock seconds since the epoch; ``metrics`` are what the training had logged last.
    """

    id: CheckpointId
    is_verified: bool
    parent: CheckpointId | None = None
    saved_at: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)


Policy = Callable[[Sequence[Kept]], list[bool]]
"""Says for each checkpoint, in any order, whether this rule wants it kept."""


def lineage(items: Sequence[Kept]) -> list[Kept]:
    """The newest checkpoint and its ancestors, newest first; what an abandoned life left behind is not among them.

    Along a lineage steps only grow, and nothing between a checkpoint and its parent belongs to it. Parents that are
    gone still say what came after them.
    """
    found: list[Kept] = []
    bound: CheckpointId | None = None
    for item in sorted(items, key=lambda item: item.id, reverse=True):
        if bound is None or (item.id <= bound and item.id.step <= bound.step):
            found.append(item)
            bound = item.parent or CheckpointId(item.id.attempt, item.id.restart, item.id.step - 1)
    return found


def newest(count: int) -> Policy:
    """Keep the ``count`` newest of the lineage; what is not of it fills the places that are left.

    So a later step of an earlier life neither outranks nor outlives what training went on with. Raises UsageError
    below 1.
    """
    if count < 1:
        raise UsageError(f"retention of {count} checkpoints", why="at least one must be kept", hint="keep: 2")

    def policy(items: Sequence[Kept]) -> list[bool]:
        own = [item.id for item in lineage(items)]
        others = sorted((item.id for item in items if item.id not in set(own)), reverse=True)
        return _flags(items, (own + others)[:count])

    return policy


def spaced(every_s: float) -> Policy:
    """Keep a history of the lineage: its oldest, and each saved ``every_s`` seconds or more after the last one kept.

    Counted from the oldest on, so that a later save never changes what is kept of the past.
    """

    def policy(items: Sequence[Kept]) -> list[bool]:
        kept: list[Kept] = []
        for item in reversed(lineage(items)):
            if not kept or item.saved_at - kept[-1].saved_at >= every_s:
                kept.append(item)
        return _flags(items, [item.id for item in kept])

    return policy


def every_steps(count: int) -> Policy:
    """Keep those of the lineage whose step is a multiple of ``count``. Raises UsageError below 1."""
    if count < 1:
        raise UsageError(f"every {count} steps", why="must be at least one", hint="keep_every_steps: 1000")
    return lambda items: _flags(items, [item.id for item in lineage(items) if item.id.step % count == 0])


def best(metric: str, count: int = 1, *, is_highest: bool = False) -> Policy:
    """Keep the ``count`` of the lineage with the lowest (or highest) ``metric``; of equal ones the newest.

    Those that were saved before it was ever logged are not compared. Raises UsageError below 1.
    """
    if count < 1:
        raise UsageError(f"the best {count}", why="must be at least one", hint=f"keep_best: lowest {metric}")
    sign = -1.0 if is_highest else 1.0

    def policy(items: Sequence[Kept]) -> list[bool]:
        known = [item for item in lineage(items) if metric in item.metrics]
        # The sort is stable, and the lineage begins with its newest.
        ranked = sorted(known, key=lambda item: sign * item.metrics[metric])
        return _flags(items, [item.id for item in ranked[:count]])

    return policy


def any_of(*policies: Policy) -> Policy:
    """Keep what at least one of the policies keeps."""

    def policy(items: Sequence[Kept]) -> list[bool]:
        return [any(flags) for flags in zip(*(each(items) for each in policies), strict=True)]

    return policy


def keep_flags(items: Sequence[Kept], policy: Policy, *, resumed_from: CheckpointId | None = None) -> list[bool]:
    """The policy's flags, and two that no policy can take back: the newest verified one and the one resumed from.

    Where nothing is verified, everything is kept: what is about to be removed may be all that is left.
    """
    newest_verified = max((item.id for item in items if item.is_verified), default=None)
    if newest_verified is None:
        return [True] * len(items)
    return [keep or item.id in (newest_verified, resumed_from) for item, keep in zip(items, policy(items), strict=True)]


def _flags(items: Sequence[Kept], kept: Collection[CheckpointId]) -> list[bool]:
    chosen = set(kept)
    return [item.id in chosen for item in items]
