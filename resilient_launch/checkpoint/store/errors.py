"""What can go wrong with a checkpoint on disk, and how an operating system's error becomes one that helps."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from resilient_launch.core.errors import CheckpointError

_HINTS = {
    errno.ENOSPC: "free space on this file system, or keep fewer checkpoints",
    errno.EDQUOT: "raise the quota, or keep fewer checkpoints",
    errno.EROFS: "the file system is mounted read-only: remount it, or use another run directory",
    errno.EACCES: "check the directory's owner and mode",
    errno.EPERM: "check the directory's owner and mode",
    errno.EIO: "the storage reports an error: look at the kernel log of this node and of the file server",
    errno.ESTALE: "the file server forgot this handle: check whether the directory was replaced",
    errno.EINTR: "a signal interrupted the storage's answer: the next save tries again",
    errno.ENOENT: "the directory vanished: check whether somebody removed or renamed it",
}


class FencedError(CheckpointError):
    """A newer attempt has taken over the run; this one may publish nothing any more."""


class DamagedError(CheckpointError):
    """A published checkpoint is not what its writer published: it goes to quarantine and an older one is used."""


class UnreadableError(CheckpointError):
    """The storage refused to say what a checkpoint holds; that proves nothing about the checkpoint itself."""


class UnsupportedError(CheckpointError):
    """A checkpoint of a format that this version does not read."""


class ForeignError(CheckpointError):
    """A checkpoint of another run."""


def write_error(error: OSError, doing: str, path: Path) -> CheckpointError:
    """A failed write, mkdir, fsync or rename as a CheckpointError with path, reason and what to try."""
    return CheckpointError(doing, why=_reason(error), where=str(path), hint=_hint(error))


def read_error(error: OSError, path: Path) -> CheckpointError:
    """A failed open or read: damage where the file is not there or is not a file, else the storage's fault."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR):
        return DamagedError("checkpoint file is missing or not a regular file", why=_reason(error), where=str(path))
    return UnreadableError("checkpoint can't be read", why=_reason(error), where=str(path), hint=_hint(error))


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _hint(error: OSError) -> str:
    return _HINTS.get(error.errno or 0, "")
