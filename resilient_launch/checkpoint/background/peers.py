"""Snapshots of other ranks, read from their memory: a server in each rank for as long as all are restoring.

A rank's arena has its own part of the state alone, and what every rank has alike is shared out between them.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

from resilient_launch.checkpoint.background.arena import Arena
from resilient_launch.checkpoint.store import FileEntry, Manifest, OpenCheckpoint, UnreadableError
from resilient_launch.checkpoint.store.files import FileReader

LOOPBACK = "127.0.0.1"
_TOKEN_BYTES = 32
_RANGE = struct.Struct("<QQ")
_CONNECT_S, _ANSWER_S = 5.0, 60.0
_READY = b"+"


class Server:
    """Sends ranges of ``arena`` to whoever knows ``token``. ``addresses`` are where others may reach this rank."""

    def __init__(self, arena: Arena, num_bytes: int, addresses: Sequence[str]) -> None:
        self._arena, self._num_bytes = arena, num_bytes
        self.addresses, self.token = list(addresses), secrets.token_hex(_TOKEN_BYTES // 2)
        # Nobody outside the node is served where all ranks are on it.
        host = LOOPBACK if self.addresses == [LOOPBACK] else ""
        self._listener = socket.create_server((host, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_closed = False
        threading.Thread(target=self._accept, name="rlaunch-peers", daemon=True).start()

    def close(self) -> None:
        """Serve nobody any more."""
        with self._lock:
            self._is_closed = True
            for each in (self._listener, *self._connections):
                # Wakes whoever waits on it.
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_closed:
                    connection.close()
                    return
                self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), name="rlaunch-peer", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.settimeout(_ANSWER_S)
            if not hmac.compare_digest(_exactly(connection, _TOKEN_BYTES), self.token.encode()):
                connection.close()
                return
            connection.sendall(_READY)
            # It ends when the reader does, or this server.
            connection.settimeout(None)
            while True:
                offset, length = _RANGE.unpack(_exactly(connection, _RANGE.size))
                end = min(offset + length, self._num_bytes)
                while offset < end:
                    offset += os.sendfile(connection.fileno(), self._arena.fd, offset, end - offset)


class Source:
    """One rank's snapshot: its memory here, or a server elsewhere; connections are per thread."""

    def fill(self, views: Sequence[memoryview], position: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Give back what reading took."""


class OwnMemory(Source):
    """This rank's own arena."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def fill(self, views: Sequence[memoryview], position: int) -> None:
        for view in views:
            view[:] = self._arena.view[position : position + len(view)]
            position += len(view)


class PeerMemory(Source):
    """The arena of a rank that serves it at one of ``addresses``."""

    def __init__(self, addresses: Sequence[str], port: int, token: str) -> None:
        self._addresses, self._port, self._token = addresses, port, token
        self._local = threading.local()
        self._made: list[socket.socket] = []

    def fill(self, views: Sequence[memoryview], position: int) -> None:
        """Raises OSError."""
        connection = self._connection()
        connection.sendall(_RANGE.pack(position, sum(len(view) for view in views)))
        for view in views:
            while view:
                count = connection.recv_into(view)
                if not count:
                    raise ConnectionError("the rank that has it is gone")
                view = view[count:]

    def close(self) -> None:
        for connection in self._made:
            connection.close()

    def _connection(self) -> socket.socket:
        known: socket.socket | None = getattr(self._local, "connection", None)
        if known is None:
            known = self._local.connection = self._connect()
            self._made.append(known)
        return known

    def _connect(self) -> socket.socket:
        last: OSError = ConnectionError("no address")
        for address in self._addresses:
            try:
                connection = socket.create_connection((address, self._port), timeout=_CONNECT_S)
            except OSError as error:
                last = error
                continue
            try:
                connection.settimeout(_ANSWER_S)
                connection.sendall(self._token.encode())
                if _exactly(connection, 1) == _READY:
                    return connection
            except OSError as error:
                last = error
            connection.close()
        raise last


class MemoryReader(FileReader):
    """Reads a snapshot as if it were its file: no byte is given out whose chunk has not been verified."""

    def __init__(self, source: Source, entry: FileEntry, algorithm: str) -> None:
        self._source = source
        super().__init__(Path("memory"), entry, algorithm)

    def close(self) -> None:
        super().close()
        self._source.close()

    def _open(self) -> None:
        """It is there."""

    def _fill(self, views: Sequence[memoryview], position: int) -> None:
        try:
            self._source.fill(views, position)
        except OSError as error:
            raise UnreadableError("a snapshot in memory can't be read", why=str(error)) from error


class OpenSnapshot(OpenCheckpoint):
    """A snapshot of all ranks as a checkpoint to read from; ``sources`` are in the order of the manifest's files."""

    def __init__(self, manifest: Manifest, sources: Sequence[Source]) -> None:
        super().__init__(Path("memory"), manifest)
        for entry, source in zip(manifest.files, sources, strict=True):
            self._readers[entry.name] = MemoryReader(source, entry, manifest.algorithm)

    def reader(self, name: str) -> FileReader:
        return self._readers[name]


def _exactly(connection: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        part = connection.recv(num_bytes - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
    return data
