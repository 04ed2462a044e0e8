"""How far a snapshot's copy has come, told by the process that copies to the one that writes it already.

An event counter of the kernel's: it never fills up, and what was copied before a word is seen by whoever hears it.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from resilient_launch.core.errors import CheckpointError

_GIVEN_UP = 1 << 62
_LOOK_S = 0.5


class Teller:
    """The copying end. ``fd`` goes to the listener's process."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._told = 0

    def tell(self, num_bytes: int) -> None:
        """The first ``num_bytes`` of the image are in place."""
        os.eventfd_write(self.fd, num_bytes - self._told)
        self._told = num_bytes

    def give_up(self) -> None:
        """The rest will never be in place."""
        os.eventfd_write(self.fd, _GIVEN_UP)

    def close(self) -> None:
        os.close(self.fd)


class Listener:
    """The writing end, for several threads. ``is_abandoned`` says whether the copying process is gone."""

    def __init__(self, fd: int, is_abandoned: Callable[[], bool]) -> None:
        self._fd, self._is_abandoned = fd, is_abandoned
        self._lock = threading.Lock()
        self._heard = 0

    def await_bytes(self, num_bytes: int) -> None:
        """Return when the first ``num_bytes`` are in place. Raises CheckpointError when they never will be."""
        with self._lock:
            if self._is_abandoned() or not self._hear(num_bytes):
                raise CheckpointError("the save was abandoned", why="the training that asked for it is gone")
            if self._heard >= _GIVEN_UP:
                raise CheckpointError("the save was abandoned", why="the state could not be copied")

    def is_whole(self, num_bytes: int) -> bool:
        """Whether all ``num_bytes`` are in place, or come to be, even if the copying process is gone since."""
        with self._lock:
            return self._hear(num_bytes) and self._heard < _GIVEN_UP

    def _hear(self, num_bytes: int) -> bool:
        while self._heard < num_bytes:
            if select.select([self._fd], [], [], _LOOK_S)[0]:
                self._heard += os.eventfd_read(self._fd)
            elif self._is_abandoned():
                return False
        return True
