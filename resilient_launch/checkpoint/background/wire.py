"""Messages between a training process and its checkpoint writer: JSON objects, and file descriptors beside them."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

_LENGTH = struct.Struct("<Q")
_WHOLE_S = 60.0
"""How long the rest of a message may take once it has begun."""


class Channel:
    """One end of a connected stream socket. One thread may use it at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._socket.setblocking(True)

    @property
    def peer_pid(self) -> int:
        """The process at the other end, or the one that listened for it."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[0])

    def send(self, message: Mapping[str, Any], fd: int | None = None) -> None:
        """Raises ConnectionError when the other end is gone."""
        body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
        try:
            socket.send_fds(self._socket, [_LENGTH.pack(len(body))], [] if fd is None else [fd])
            self._socket.sendall(body)
        except OSError as error:
            raise ConnectionError(str(error)) from error

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], int | None]:
        """The next message, and the descriptor that came with it, which is the caller's.

        Raises TimeoutError when none has begun by then, and ConnectionError when the other end is gone.
        """
        self._await(time.monotonic() + timeout_s)
        deadline = time.monotonic() + _WHOLE_S
        fd: int | None = None
        try:
            head, fds, _, _ = socket.recv_fds(self._socket, _LENGTH.size, 1)
            fd = fds[0] if fds else None
            head += self._exactly(_LENGTH.size - len(head), deadline) if head else b""
            if not head:
                raise ConnectionError("closed")
            message = json.loads(self._exactly(_LENGTH.unpack(head)[0], deadline))
        except OSError as error:
            _close(fd)
            raise ConnectionError(str(error)) from error
        return message, fd

    def is_closed(self) -> bool:
        """Whether the other end has closed its side; reads nothing."""
        if not select.select([self._socket], [], [], 0.0)[0]:
            return False
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, num_bytes: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < num_bytes:
            self._await(deadline)
            part = self._socket.recv(min(num_bytes - len(parts), 1 << 20))
            if not part:
                raise ConnectionError("closed in the middle of a message")
            parts += part
        return bytes(parts)

    def _await(self, deadline: float) -> None:
        if not select.select([self._socket], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            raise TimeoutError


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)
