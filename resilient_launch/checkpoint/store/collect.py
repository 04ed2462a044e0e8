"""What could be removed from a checkpoints directory, and why: a plan first, the removal only on demand."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from resilient_launch.checkpoint.store.choose import Standing
from resilient_launch.checkpoint.store.litter import discard
from resilient_launch.checkpoint.store.prune import kept
from resilient_launch.checkpoint.store.survey import Found
from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.retention import Policy, keep_flags


@dataclass(frozen=True, kw_only=True)
class Fate:
    """One directory, whether it goes, and why (not)."""

    found: Found
    goes: bool
    why: str


def plan(
    survey: Sequence[Found],
    policy: Policy,
    *,
    verified: Collection[CheckpointId],
    resumed_from: CheckpointId | None,
    is_idle: bool,
    with_quarantined: bool = False,
) -> list[Fate]:
    """What retention would leave of a survey. ``is_idle``: no attempt runs, so that nothing unfinished has a writer.

    Checkpoints that can't be looked into or belong to another run always stay.
    """
    usable = [each for each in survey if each.manifest is not None]
    items = [kept(each.manifest, is_verified=each.id in verified) for each in usable if each.manifest]
    stays = keep_flags(items, policy, resumed_from=resumed_from)
    flags = {each.name: keep for each, keep in zip(usable, stays, strict=True)}
    return [_fate(each, flags, resumed_from, verified, is_idle, with_quarantined) for each in survey]


def _fate(
    each: Found,
    flags: dict[str, bool],
    resumed_from: CheckpointId | None,
    verified: Collection[CheckpointId],
    is_idle: bool,
    with_quarantined: bool,
) -> Fate:
    if each.standing is Standing.UNFINISHED:
        goes = is_idle or each.name.startswith((".fenced-", ".trash-"))
        return Fate(found=each, goes=goes, why="nobody will finish it" if goes else "an attempt may be writing it")
    if each.standing is Standing.QUARANTINED:
        why = "in quarantine" if with_quarantined else "in quarantine: kept for a diagnosis, unless --quarantined"
        return Fate(found=each, goes=with_quarantined, why=why)
    if each.name not in flags:
        return Fate(found=each, goes=False, why=f"{each.standing}: not ours to judge")
    if not flags[each.name]:
        return Fate(found=each, goes=True, why="retention does not keep it")
    if each.id == resumed_from:
        return Fate(found=each, goes=False, why="training was resumed from it")
    if not verified:
        return Fate(found=each, goes=False, why="no checkpoint verifies: everything stays")
    return Fate(
        found=each, goes=False, why="the newest that verifies" if each.id == max(verified) else "retention keeps it"
    )


def remove(path: Path) -> bool:
    """Remove a directory of the plan; whether it is out of sight."""
    if path.name.startswith("."):
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()
    return discard(path)
