"""File operations that survive a power cut: every byte and every name is fsynced before it is relied on."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EACCES, errno.EXDEV}
_TEMPORARY = re.compile(r"\.tmp-(.+)-[0-9a-f]{12}")


def fsync_dir(path: Path) -> None:
    """Make the names inside ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Create ``path`` with ``data`` and fsync the file; its name becomes durable with the directory's fsync.

    Raises FileExistsError when the name is taken: nothing is ever overwritten in place.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Put ``data`` under ``path`` in one step: a reader, or a crash, sees the old content or the new, never a part."""
    with _temporary(path) as temporary:
        write_file(temporary, data, mode=mode)
        temporary.replace(path)
    fsync_dir(path.parent)


def claim_file(path: Path, data: bytes, *, mode: int = 0o644) -> bool:
    """Create ``path`` whole, if and only if nobody has it; returns whether this caller got it.

    A hard link is used because it is atomic on NFS too and never shows an empty file; where the mount has no hard
    links, O_EXCL decides and a reader may meet the file before its content.
    """
    with _temporary(path) as temporary:
        write_file(temporary, data, mode=mode)
        try:
            mine = temporary.stat().st_ino
            os.link(temporary, path)
        except FileExistsError:
            # NFS may report EEXIST for a link that did succeed when the reply was lost: two names on one inode.
            won = path.stat().st_ino == mine
        except FileNotFoundError:
            # Swept as litter by whoever has the name.
            if not os.path.lexists(path):
                raise
            won = False
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            try:
                write_file(path, data, mode=mode)
                won = True
            except FileExistsError:
                won = False
        else:
            won = True
    fsync_dir(path.parent)
    return won


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f".tmp-{path.name}-{secrets.token_hex(6)}")
    try:
        yield temporary
    finally:
        # Whether the name was taken is decided; what can't be removed is for ``sweep_temporaries``.
        with contextlib.suppress(OSError):
            temporary.unlink()


def sweep_temporaries(directory: Path, is_over: Callable[[str], bool]) -> None:
    """Remove what ``claim_file`` and ``replace_file`` left in ``directory`` when they were killed, where possible.

    ``is_over`` says of a name whether nobody can still be about to create it. Never raises OSError.
    """
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            match = _TEMPORARY.fullmatch(path.name)
            if match is not None and is_over(match[1]):
                with contextlib.suppress(OSError):
                    path.unlink()
