"""One large file straight from memory to disk: hashed while it is written, past the page cache where the mount can."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from resilient_launch.checkpoint.store.errors import write_error
from resilient_launch.checkpoint.store.hashing import combine, new_hash
from resilient_launch.checkpoint.store.manifest import FileEntry, check_file_name

BLOCK_BYTES = 4096
"""What direct I/O wants offsets, lengths and addresses to be multiples of, on every file system that has it."""
_NO_DIRECT = {errno.EINVAL, errno.ENOTSUP}
_O_DIRECT = getattr(os, "O_DIRECT", 0)


def write_image(
    directory: Path,
    name: str,
    image: memoryview,
    num_bytes: int,
    *,
    algorithm: str,
    chunk_bytes: int,
    num_threads: int = 4,
    await_bytes: Callable[[int], object] = lambda num_bytes: None,
    mode: int = 0o644,
) -> FileEntry:
    """Create ``directory/name`` with the first ``num_bytes`` of ``image``, fsynced, and describe it for the manifest.

    ``image`` begins on a page and goes on to the end of its last block of ``BLOCK_BYTES``. Before each chunk
    ``await_bytes`` is called, from several threads, with how many bytes of ``image`` must be in place; what it raises
    ends the writing. Raises CheckpointError; the file is then closed and never tried again, and may be left behind.
    """
    path = directory / check_file_name(name)
    file = _open(path, mode, direct=chunk_bytes % BLOCK_BYTES == 0)
    try:
        chunks = _put_all(file, path, image, num_bytes, algorithm, chunk_bytes, num_threads, await_bytes)
        try:
            # The last block was written whole.
            os.ftruncate(file, num_bytes)
            os.fsync(file)
        except OSError as error:
            raise write_error(error, "checkpoint file can't be made durable", path) from error
    except BaseException:
        os.close(file)
        raise
    try:
        # NFS may keep a write error for close.
        os.close(file)
    except OSError as error:
        raise write_error(error, "checkpoint file can't be closed", path) from error
    return FileEntry(
        name=name, size=num_bytes, digest=combine(algorithm, chunks), chunk_bytes=chunk_bytes, chunks=chunks
    )


def _open(path: Path, mode: int, *, direct: bool) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, mode)
    except OSError as error:
        raise write_error(error, "checkpoint file can't be created", path) from error
    if direct:
        # Asked for afterwards, because an open that refuses it would have created the file already.
        _set_direct(fd, True)
    return fd


def _set_direct(fd: int, wanted: bool) -> None:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | _O_DIRECT if wanted else flags & ~_O_DIRECT)
    except OSError as error:
        if error.errno not in _NO_DIRECT:
            raise


def _put_all(
    fd: int,
    path: Path,
    image: memoryview,
    num_bytes: int,
    algorithm: str,
    chunk_bytes: int,
    num_threads: int,
    await_bytes: Callable[[int], object],
) -> tuple[str, ...]:
    failed = threading.Event()

    def put(start: int) -> str:
        if failed.is_set():
            return ""
        try:
            stop = min(start + chunk_bytes, num_bytes)
            await_bytes(stop)
            value = new_hash(algorithm)
            value.update(image[start:stop])
            _write(fd, image[start : start + -(-(stop - start) // BLOCK_BYTES) * BLOCK_BYTES], start)
            return value.hexdigest()
        except BaseException:
            failed.set()
            raise

    # Several threads keep the disk busy while others hash; both leave Python's lock to the rest.
    with ThreadPoolExecutor(num_threads, thread_name_prefix="rlaunch-write") as pool:
        try:
            return tuple(pool.map(put, range(0, num_bytes, chunk_bytes)))
        except OSError as error:
            raise write_error(error, "checkpoint file can't be written", path) from error


def _write(fd: int, view: memoryview, position: int) -> None:
    while view:
        try:
            count = os.pwrite(fd, view, position)
        except OSError as error:
            if error.errno not in _NO_DIRECT or not fcntl.fcntl(fd, fcntl.F_GETFL) & _O_DIRECT:
                raise
            _set_direct(fd, False)
            continue
        view, position = view[count:], position + count
