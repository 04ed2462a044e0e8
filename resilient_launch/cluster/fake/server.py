"""The controller's sockets: who is connected, what they sent, what they have yet to be told."""

from __future__ import annotations

import array
import contextlib
import os
import selectors
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from resilient_launch.cluster.fake import wire
from resilient_launch.cluster.fake.srun_session import SrunSession

_READ_BYTES = 1 << 18
_BACKLOG = 512


@dataclass(eq=False)
class Connection:
    """One client: a command, a supervisor or the facade.

    ``key`` names a supervisor; ``wait`` what a command waits for; ``handles`` are files that srun passed on; ``node``
    is where a command inside a job runs.
    """

    sock: socket.socket
    decoder: wire.Decoder = field(default_factory=wire.Decoder)
    out: bytearray = field(default_factory=bytearray)
    handles: list[int] = field(default_factory=list)
    key: str = ""
    wait: str = ""
    node: str = ""
    session: SrunSession | None = None
    closing: bool = False

    def send(self, *fields: bytes) -> None:
        """Queue one frame; it leaves once the turn's changes are committed."""
        self.out += wire.encode(fields)

    def finish(self, *fields: bytes) -> None:
        """Queue the last frame."""
        self.send(*fields)
        self.closing = True

    def peer(self) -> tuple[int, int]:
        """User and group of the process at the other end."""
        credentials = array.array("i", self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return credentials[1], credentials[2]


class Server:
    """Listens on a unix socket and wakes for signals. The callbacks get every frame and every lost connection."""

    def __init__(
        self,
        path: Path,
        *,
        on_frame: Callable[[Connection, list[bytes]], None],
        on_drop: Callable[[Connection], None],
        on_child: Callable[[], None],
    ) -> None:
        self._on_frame, self._on_drop, self._on_child = on_frame, on_drop, on_child
        self._path = path
        self.connections: set[Connection] = set()
        self._selector = selectors.DefaultSelector()
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._wake, write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)

    def close(self) -> None:
        """Stop listening; nobody can connect any more."""
        self._path.unlink(missing_ok=True)
        self._listener.close()

    def wait(self, timeout_s: float) -> None:
        """Sleep until something happens, and pass all of it on."""
        for key, mask in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj == self._wake:
                with contextlib.suppress(BlockingIOError):
                    while os.read(self._wake, 512):
                        pass
                self._on_child()
            else:
                if mask & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if mask & selectors.EVENT_READ and key.data in self.connections:
                    self._read(key.data)

    def flush(self) -> None:
        """Send what waits, as far as the sockets take it."""
        for connection in list(self.connections):
            if connection.out or connection.closing:
                self._flush(connection)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                connection = Connection(sock)
                self.connections.add(connection)
                self._selector.register(sock, selectors.EVENT_READ, connection)

    def _read(self, connection: Connection) -> None:
        try:
            data, control, _, _ = connection.sock.recvmsg(_READ_BYTES, socket.CMSG_SPACE(12), socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except ConnectionError:
            data, control = b"", []
        for level, kind, body in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                handles = array.array("i")
                handles.frombytes(body[: len(body) - len(body) % handles.itemsize])
                connection.handles.extend(handles)
        if not data:
            self._drop(connection)
            return
        try:
            for frame in connection.decoder.feed(data):
                self._on_frame(connection, frame)
        except (ValueError, KeyError, IndexError) as error:
            # Only a broken client sends this; it loses its connection, and nobody else notices.
            connection.finish(b"err", f"slurmctld: bad request: {error!r}\n".encode())

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.out:
                del connection.out[: connection.sock.send(connection.out)]
        except BlockingIOError:
            pass
        except OSError:
            connection.out.clear()
            connection.closing = True
        if connection.closing and not connection.out:
            self._drop(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.out else 0)
        self._selector.modify(connection.sock, events, connection)

    def _drop(self, connection: Connection) -> None:
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()
        for handle in connection.handles:
            os.close(handle)
        connection.handles.clear()
        self._on_drop(connection)
