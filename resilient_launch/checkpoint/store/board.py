"""The little notice board over which ranks coordinate a save or a load; never the training process group."""

from __future__ import annotations

import threading
from typing import Protocol


class Board(Protocol):
    """Keys posted once and read by anyone. Everything posted is JSON.

    ``read`` raises TimeoutError when nobody posted ``key`` within ``timeout_s`` seconds (0 looks once), and
    ConnectionError when the board itself is gone. ``discard`` frees a key that nobody will read again.
    """

    def post(self, key: str, value: bytes) -> None: ...
    def read(self, key: str, timeout_s: float) -> bytes: ...
    def discard(self, key: str) -> None: ...


class LocalBoard:
    """A board for the ranks, or threads, of one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def post(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def read(self, key: str, timeout_s: float) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise TimeoutError(key)
            return self._values[key]

    def discard(self, key: str) -> None:
        with self._changed:
            self._values.pop(key, None)
