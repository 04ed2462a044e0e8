"""Removing what retention does not keep, after a commit."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from resilient_launch.checkpoint.store.choose import open_checkpoint, published
from resilient_launch.checkpoint.store.litter import discard
from resilient_launch.checkpoint.store.manifest import Manifest
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.retention import Kept, Policy, keep_flags


def prune(
    directory: Path, policy: Policy, *, verified: Collection[CheckpointId], resumed_from: CheckpointId | None
) -> list[CheckpointId]:
    """Remove published checkpoints that ``policy`` does not keep; returns those removed.

    Call it only when a new checkpoint is durable. ``verified`` are the ones whose content is known to be right: just
    committed by this process or verified when it loaded. Never raises for a directory that can't be removed.
    """
    items = [_look(directory / str(ident), ident, is_verified=ident in verified) for ident in published(directory)]
    flags = keep_flags(items, policy, resumed_from=resumed_from)
    doomed = [item.id for item, keep in zip(items, flags, strict=True) if not keep]
    return [ident for ident in doomed if discard(directory / str(ident))]


def kept(manifest: Manifest, *, is_verified: bool) -> Kept:
    """A checkpoint as the retention policies see it."""
    metrics = manifest.facts.metadata.get("metrics")
    return Kept(
        id=manifest.id,
        is_verified=is_verified,
        parent=CheckpointId.parse(manifest.facts.parent or ""),
        saved_at=manifest.saved_at,
        metrics={name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
        if isinstance(metrics, dict)
        else {},
    )


def _look(path: Path, ident: CheckpointId, *, is_verified: bool) -> Kept:
    try:
        with open_checkpoint(path) as opened:
            return kept(opened.manifest, is_verified=is_verified)
    except CheckpointError:
        # What can't be looked into is judged by its name.
        return Kept(id=ident, is_verified=is_verified)


def described(metrics: Mapping[str, float]) -> dict[str, Any]:
    """``metrics`` as they stand in a checkpoint's metadata; a manifest holds finite numbers only."""
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return {"metrics": finite} if finite else {}
