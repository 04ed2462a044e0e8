"""Checkpoints on storage without an atomic rename: written under their own names, and there once their manifest is.

.begun          first of all: this directory never moves, and holds a checkpoint only with a manifest
MANIFEST.json   last of all; a torn one is not believed, because its own digest is wrong
.revoked        whatever comes of it counts no more: its writer is of an older attempt, or it is damaged

What writes so needs no rename at all. Both kinds may lie side by side, and every reader takes both.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from resilient_launch.checkpoint.store.manifest import MANIFEST_NAME
from resilient_launch.core.durable import fsync_dir, write_file

BEGUN_NAME, REVOKED_NAME = ".begun", ".revoked"


def begin(path: Path) -> None:
    """Make the directory of a new checkpoint. Raises OSError, FileExistsError where the name is taken."""
    path.mkdir(0o755)
    write_file(path / BEGUN_NAME, b"")
    fsync_dir(path)
    fsync_dir(path.parent)


def is_in_place(path: Path) -> bool:
    """Whether a directory was begun in this way. Raises OSError where the storage does not say."""
    return _is(path / BEGUN_NAME)


def is_finished(path: Path) -> bool:
    """Whether it has a manifest, good or bad; one that was created and not written is none. Raises OSError."""
    try:
        return (path / MANIFEST_NAME).lstat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_empty(path: Path) -> bool:
    """Whether it was not even begun, or is all but removed. Raises OSError."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except NotADirectoryError:
        return False


def is_revoked(path: Path) -> bool:
    """Raises OSError."""
    return _is(path / REVOKED_NAME)


def is_published(path: Path) -> bool:
    """Whether a directory with a checkpoint's name is one: renamed to it, or begun under it and committed.

    Raises OSError.
    """
    if is_in_place(path):
        return is_finished(path) and not is_revoked(path)
    return is_finished(path) or not is_empty(path)


def is_unfinished(path: Path) -> bool:
    """Whether something was begun in this very directory, and has no manifest yet. Raises OSError."""
    return not path.is_symlink() and is_in_place(path) and not is_finished(path)


def is_over(path: Path) -> bool:
    """Whether nobody will ever publish what is in this very directory. Raises OSError."""
    if path.is_symlink() or is_finished(path):
        return False
    return is_revoked(path) or is_empty(path)


def revoke(path: Path, why: str) -> bool:
    """Make sure that nothing that is, or will be, in the directory counts; whether that is durable. Never raises."""
    try:
        with contextlib.suppress(FileExistsError):
            write_file(path / REVOKED_NAME, why.encode())
        fsync_dir(path)
    except OSError:
        return False
    return True


def remove(path: Path) -> bool:
    """Remove the directory, its manifest first, so that no half-removed checkpoint counts; whether that is gone.

    Never raises.
    """
    try:
        (path / MANIFEST_NAME).unlink(missing_ok=True)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        names = sorted(each.name for each in path.iterdir())
        # What says that nothing here counts goes last.
        for name in sorted(names, key=lambda name: (name == BEGUN_NAME, name == REVOKED_NAME)):
            (path / name).unlink()
        path.rmdir()
    return True


def _is(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
