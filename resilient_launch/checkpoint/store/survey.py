"""Looking on from outside: what lies in a checkpoints directory, and what the loader would make of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from resilient_launch.checkpoint.store import in_place
from resilient_launch.checkpoint.store.choose import Lineage, Standing, open_checkpoint, published
from resilient_launch.checkpoint.store.errors import (
    DamagedError,
    FencedError,
    ForeignError,
    UnsupportedError,
)
from resilient_launch.checkpoint.store.litter import is_unfinished, quarantined
from resilient_launch.checkpoint.store.manifest import Manifest
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId


@dataclass(frozen=True, kw_only=True)
class Found:
    """One directory of the survey. ``manifest`` is None where it can't be believed, ``id`` where there is none."""

    name: str
    path: Path
    id: CheckpointId | None
    standing: Standing
    why: str
    num_bytes: int
    manifest: Manifest | None = None


def survey(directory: Path, lineage: Lineage) -> list[Found]:
    """Every published checkpoint as the loader of ``lineage`` stands to it, newest first; then what it never reads.

    Manifests are read, content is not: the one that is CHOSEN is chosen if its files verify. Raises CheckpointError
    where the directory can't be listed.
    """
    found: list[Found] = []
    chosen: Found | None = None
    for ident in published(directory):
        each = _published(directory / str(ident), ident, lineage, chosen)
        chosen = each if each.standing is Standing.CHOSEN else chosen
        found.append(each)
    return found + _rest(directory)


def _published(path: Path, ident: CheckpointId, lineage: Lineage, chosen: Found | None) -> Found:
    manifest = None
    try:
        with open_checkpoint(path, lineage.run_id) as opened:
            manifest = opened.manifest
        standing, why = _standing(ident, lineage, chosen)
    except CheckpointError as error:
        standing, why = standing_of(error), f"{error.what}, {error.why}" if error.why else error.what
    num_bytes = manifest.num_bytes if manifest is not None else size_of(path)
    return Found(
        name=path.name, path=path, id=ident, standing=standing, why=why, num_bytes=num_bytes, manifest=manifest
    )


def standing_of(error: CheckpointError) -> Standing:
    """What an error on opening a checkpoint makes of it."""
    kinds: tuple[tuple[type[CheckpointError], Standing], ...] = (
        (DamagedError, Standing.DAMAGED),
        (ForeignError, Standing.FOREIGN),
        (UnsupportedError, Standing.UNSUPPORTED),
        (FencedError, Standing.FENCED),
    )
    return next((standing for kind, standing in kinds if isinstance(error, kind)), Standing.UNREADABLE)


def _standing(ident: CheckpointId, lineage: Lineage, chosen: Found | None) -> tuple[Standing, str]:
    if str(ident) in lineage.passed_over:
        return Standing.PASSED_OVER, lineage.why_passed_over(str(ident))
    if not lineage.admits(ident):
        why = f"published by attempt {ident.attempt} after attempt {lineage.attempt} had been claimed"
        return Standing.FENCED, why
    if chosen is None:
        return Standing.CHOSEN, "the newest of the lineage; used if its files verify"
    return Standing.OLDER, _older(ident, chosen)


def _older(ident: CheckpointId, chosen: Found) -> str:
    assert chosen.id is not None
    if ident.step >= chosen.id.step:
        life = f"attempt {chosen.id.attempt}, worker-group restart {chosen.id.restart}"
        return f"of an earlier life than {chosen.name}, which {life} saved; used if that is damaged"
    return f"older than {chosen.name}; used if that is damaged"


def _rest(directory: Path) -> list[Found]:
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError:
        return []
    found = []
    for name in names:
        path = directory / name
        ident = quarantined(name) or _revoked(path)
        if ident is None and not is_unfinished(name) and not _is_begun(path):
            continue
        standing = Standing.UNFINISHED if ident is None else Standing.QUARANTINED
        why = "being written, or left behind by a writer that died" if ident is None else "put aside, never loaded"
        found.append(Found(name=name, path=path, id=ident, standing=standing, why=why, num_bytes=size_of(path)))
    return found


def _is_begun(path: Path) -> bool:
    """Whether something was begun here under a checkpoint's own name, and is none yet."""
    return CheckpointId.parse(path.name) is not None and not in_place.is_published(path)


def _revoked(path: Path) -> CheckpointId | None:
    """The checkpoint that was finished in place and does not count any more."""
    return CheckpointId.parse(path.name) if _is_begun(path) and in_place.is_finished(path) else None


def size_of(path: Path) -> int:
    """Bytes of the files directly in a directory; what vanishes meanwhile counts nothing."""
    total = 0
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    total += entry.stat(follow_symlinks=False).st_size
                except OSError:
                    continue
    except OSError:
        return total
    return total
