"""Which checkpoints to keep: values in, one flag each out. Nothing is read or removed here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from resilient_launch.core.errors import UsageError
from resilient_launch.core.ids import CheckpointId


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One published checkpoint; ``is_verified`` when its content is known to be what was written."""

    id: CheckpointId
    is_verified: bool


Policy = Callable[[Sequence[Kept]], list[bool]]
"""Says for each checkpoint, in any order, whether this rule wants it kept."""


def newest(count: int) -> Policy:
    """Keep the ``count`` newest of the lineage: by attempt and worker-group restart first, then by step.

    A later step of an earlier life is older than an earlier step of this one. Raises UsageError below 1.
    """
    if count < 1:
        raise UsageError(f"retention of {count} checkpoints", why="at least one must be kept", hint="keep: 2")

    def policy(items: Sequence[Kept]) -> list[bool]:
        ranked = set(sorted((item.id for item in items), reverse=True)[:count])
        return [item.id in ranked for item in items]

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
