"""Shared memory that a snapshot is copied into: made once, its pages touched once, the same for every save."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import re
from pathlib import Path

_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, Linux 5.14: map every page now, and say so when there is no memory."""
_GRAIN_BYTES = 2 << 20
_PIECE_BYTES = 64 << 20


class Arena:
    """A mapping of anonymous shared memory of ``num_bytes``; made here, or joined through its descriptor ``fd``."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.num_bytes = os.fstat(fd).st_size
        self.mapped = mmap.mmap(fd, self.num_bytes)
        self.view = memoryview(self.mapped)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.mapped))
        self.is_warm = False

    @classmethod
    def create(cls, num_bytes: int) -> Arena:
        """Memory for ``num_bytes``, every page of it in place. Raises OSError (ENOMEM) where there is not enough."""
        fd = os.memfd_create("rlaunch-checkpoint", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, max(-(-num_bytes // _GRAIN_BYTES), 1) * _GRAIN_BYTES)
            arena = cls(fd)
        except BaseException:
            os.close(fd)
            raise
        try:
            arena.populate()
        except BaseException:
            arena.close()
            raise
        return arena

    def populate(self) -> None:
        """Map every page of it into this process, so that no copy stops to do so: ten times the copy's own cost.

        Leaves Python's lock to others meanwhile. Raises OSError.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        for start in range(0, self.num_bytes, _PIECE_BYTES):
            count = min(_PIECE_BYTES, self.num_bytes - start)
            address = ctypes.c_void_p(self.address + start)
            if libc.madvise(address, ctypes.c_size_t(count), _POPULATE_WRITE) == 0:
                continue
            if ctypes.get_errno() != errno.EINVAL:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            # An older kernel: reading a byte of each page and writing it back does the same.
            page = self.view[start : start + count : mmap.PAGESIZE]
            page[:] = bytes(page)
        self.is_warm = True

    def close(self) -> None:
        """Give up this process's share; the memory goes when nobody has it any more."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.view.release()
        # Tensors that look into the mapping keep it until they are gone.
        with contextlib.suppress(BufferError):
            self.mapped.close()


def available_bytes() -> int:
    """Memory that can be had without swapping: the machine's, or what the control group leaves, if that is less."""
    found = [_meminfo_bytes(), *_group_headroom_bytes()]
    return max(min(found), 0)


def _meminfo_bytes() -> int:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _group_headroom_bytes() -> list[int]:
    """What is left under the limit of this process's control group (v2) and of each one above it."""
    try:
        own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    found = []
    group = Path("/sys/fs/cgroup") / own[3:].strip().lstrip("/")
    while group.is_relative_to("/sys/fs/cgroup"):
        try:
            limit = (group / "memory.max").read_text().strip()
            if limit != "max":
                found.append(int(limit) - int((group / "memory.current").read_text()) + _reclaimable_bytes(group))
        except (OSError, ValueError):
            pass
        group = group.parent
    return found


def _reclaimable_bytes(group: Path) -> int:
    """Clean page cache that the group's own limit can push out."""
    match = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
    return int(match[1]) if match else 0
