"""Names in a checkpoints directory that are no checkpoint: temporary, fenced, quarantined, half removed.

.tmp-<checkpoint>-<token>      being written; never read
.fenced-<checkpoint>-<token>   taken away from a writer of an older attempt, so that its rename finds nothing
.trash-<checkpoint>-<token>    on its way out; renamed first, so that no half-removed checkpoint is ever visible
<checkpoint>.corrupt, .fenced  quarantine, kept for a diagnosis
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from pathlib import Path

from resilient_launch.checkpoint.store import in_place
from resilient_launch.core.durable import fsync_dir
from resilient_launch.core.ids import CheckpointId

_HIDDEN = re.compile(r"\.(tmp|fenced|trash)-(step-[^-]+)-[0-9a-f]+")
_QUARANTINED = re.compile(r"(step-.+)\.(?:corrupt|fenced)(?:-\d+)?")
_POINTER = re.compile(r"\.tmp-LATEST-[0-9a-f]+")


def temporary_name(ident: CheckpointId) -> str:
    """A name under which ``ident`` is written; never the same twice."""
    return f".tmp-{ident}-{secrets.token_hex(6)}"


def fenced_name(temporary: str) -> str:
    """What fencing renames a temporary directory to."""
    return ".fenced-" + temporary.removeprefix(".tmp-")


def is_unfinished(name: str) -> bool:
    """Whether this is the name of a directory that is being written, or that nobody will finish."""
    return _HIDDEN.fullmatch(name) is not None


def quarantined(name: str) -> CheckpointId | None:
    """The checkpoint that a name in quarantine stands for; None for any other name."""
    match = _QUARANTINED.fullmatch(name)
    return CheckpointId.parse(match[1]) if match else None


def fence(directory: Path, attempt: int, restart: int = 0) -> list[str]:
    """Take the temporary directories of everyone older than (attempt, worker-group restart) away from their writers.

    A writer that was stopped before its rename, and goes on an hour later, then finds nothing to publish; where there
    is no rename, what it has begun is revoked. Returns the names that they have now. Called by whoever claims an
    attempt, before it lists the checkpoints that it may use.
    """
    fenced = []
    for name in _names(directory):
        match = _HIDDEN.fullmatch(name)
        if match is not None and match[1] != "tmp":
            continue
        ident = CheckpointId.parse(match[2] if match is not None else name)
        if ident is None or (ident.attempt, ident.restart) >= (attempt, restart):
            continue
        if match is None:
            path = directory / name
            if in_place.is_unfinished(path) and in_place.revoke(path, "fenced"):
                fenced.append(name)
            continue
        # ENOENT: the writer published or removed it first, or another claimant was faster.
        with contextlib.suppress(FileNotFoundError):
            (directory / name).rename(directory / fenced_name(name))
            fenced.append(fenced_name(name))
    if fenced:
        fsync_dir(directory)
    return fenced


def sweep(directory: Path) -> list[str]:
    """Remove what fencing and pruning left behind, as far as possible. Returns the names that are gone.

    Only names that no living writer can publish are touched: ``.fenced-*`` and ``.trash-*``, never ``.tmp-*`` of a
    checkpoint, and what was begun in place and is revoked without a manifest.
    """
    gone = []
    for name in _names(directory):
        match = _HIDDEN.fullmatch(name)
        if CheckpointId.parse(name) is not None:
            with contextlib.suppress(OSError):
                if in_place.is_over(directory / name):
                    in_place.remove(directory / name)
        elif match is not None and match[1] != "tmp":
            # NFS keeps .nfsXXXX files of a directory that somebody still has open; the next start tries again.
            _remove(directory / name)
        elif _POINTER.fullmatch(name):
            with contextlib.suppress(OSError):
                (directory / name).unlink()
        else:
            continue
        if not os.path.lexists(directory / name):
            gone.append(name)
    return gone


def discard(path: Path) -> bool:
    """Remove a temporary or published directory: out of sight in one step, then its files. Whether it is out of sight.

    Never raises: it runs where another error is already on its way, or where only space is at stake.
    """
    with contextlib.suppress(OSError):
        if in_place.is_in_place(path):
            return in_place.remove(path)
    stem = re.sub(r"^\.tmp-|-[0-9a-f]+$", "", path.name) if path.name.startswith(".tmp-") else path.name
    trash = path.with_name(f".trash-{stem}-{secrets.token_hex(6)}")
    try:
        path.rename(trash)
    except OSError:
        return not os.path.lexists(path)
    _remove(trash)
    return True


def discard_unpublished(directory: Path, ident: CheckpointId) -> None:
    """Give back the space of a save of ``ident`` whose writer died. Never raises."""
    with contextlib.suppress(OSError):
        for name in _names(directory):
            match = _HIDDEN.fullmatch(name)
            if match is not None and match[1] == "tmp" and match[2] == str(ident):
                discard(directory / name)
        path = directory / str(ident)
        if in_place.is_unfinished(path):
            in_place.remove(path)


def quarantine(path: Path, suffix: str) -> str | None:
    """Rename a published checkpoint to ``<name>.<suffix>``, or ``.<suffix>-1`` and so on where that is taken.

    Returns the new name; None when somebody else was faster or the mount does not allow it: the caller goes on to the
    next checkpoint in any case. What was begun in place stays there and is revoked.
    """
    with contextlib.suppress(OSError):
        if in_place.is_in_place(path):
            return f"{path.name}/{in_place.REVOKED_NAME}" if in_place.revoke(path, suffix) else None
    for number in range(1000):
        target = path.with_name(f"{path.name}.{suffix}" + (f"-{number}" if number else ""))
        if os.path.lexists(target):
            continue
        try:
            path.rename(target)
            fsync_dir(path.parent)
        except OSError:
            return target.name if os.path.lexists(target) and not os.path.lexists(path) else None
        return target.name
    return None


def _remove(path: Path) -> None:
    # Some of its errors pass through ignore_errors.
    with contextlib.suppress(OSError):
        shutil.rmtree(path, ignore_errors=True)


def _names(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir())
    except FileNotFoundError:
        return []
