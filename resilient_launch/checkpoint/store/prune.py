"""Removing what retention does not keep, after a commit."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from resilient_launch.checkpoint.store.choose import published
from resilient_launch.checkpoint.store.litter import discard
from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.retention import Kept, Policy, keep_flags


def prune(
    directory: Path, policy: Policy, *, verified: Collection[CheckpointId], resumed_from: CheckpointId | None
) -> list[CheckpointId]:
    """Remove published checkpoints that ``policy`` does not keep; returns those removed.

    Call it only when a new checkpoint is durable. ``verified`` are the ones whose content is known to be right: just
    committed by this process or verified when it loaded. Never raises for a directory that can't be removed.
    """
    items = [Kept(id=ident, is_verified=ident in verified) for ident in published(directory)]
    flags = keep_flags(items, policy, resumed_from=resumed_from)
    doomed = [item.id for item, keep in zip(items, flags, strict=True) if not keep]
    return [ident for ident in doomed if discard(directory / str(ident))]
