"""The training process's end of its checkpoint writer: starts or joins it, shares the arena, answers for the board."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import resilient_launch
from resilient_launch.checkpoint.background.arena import Arena
from resilient_launch.checkpoint.background.wire import Channel
from resilient_launch.checkpoint.store import Board
from resilient_launch.checkpoint.store.rounds import error_from_json
from resilient_launch.core.errors import CheckpointError

_MODULE = "resilient_launch.checkpoint.background.process"
_START_S = 30.0
_ARENA_S = 300.0
_HELD_S = 20.0
"""How long a writer may take to end the save of a process that is gone, before its snapshots are done without."""
_PAUSE_S = 0.01
_END_S = 5.0


class WriterGoneError(Exception):
    """The writer died, or does not answer any more and was killed."""


class MemoryShortError(Exception):
    """There is not enough memory for a snapshot."""


def spawn(path: Path) -> subprocess.Popen[bytes]:
    """Start a writer that will listen at ``path``, in a session of its own; it ends with this process."""
    root = str(Path(resilient_launch.__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        # Not the working directory: a user's json.py there must not become this process's.
        [sys.executable, "-P", "-m", _MODULE, str(path), str(os.getpid())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


class Client:
    """A connection to one writer. ``path`` is where a node agent's writer listens; None starts one of our own.

    Used by one thread at a time.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._own: subprocess.Popen[bytes] | None = None
        self._directory: str | None = None
        self._channel: Channel | None = None
        self.arenas: dict[int, Arena] = {}
        if path is None:
            # A socket's path must be short, which TMPDIR need not be.
            short = "/tmp" if os.access("/tmp", os.W_OK) else None
            self._directory = tempfile.mkdtemp(prefix="rlaunch-writer-", dir=short)
            path = Path(self._directory) / "socket"
            self._own = spawn(path)
        self.path = path

    def prepare(self, num_bytes: int, num_sharing: int, slot: int = 0) -> Arena:
        """Arena ``slot`` for at least ``num_bytes``, mapped here and warm; ``num_sharing`` ranks use the node's memory.

        Raises MemoryShortError and WriterGoneError.
        """
        known = self.arenas.get(slot)
        if known is not None and known.num_bytes >= num_bytes:
            return self._warm(slot, known)
        if known is not None:
            self.arenas.pop(slot).close()
        with self._answering() as channel:
            channel.send({"op": "arena", "num_bytes": num_bytes, "num_sharing": num_sharing, "slot": slot})
            answer, fd = channel.receive(_ARENA_S)
        if fd is None:
            raise MemoryShortError(answer["why"])
        self.arenas[slot] = Arena(fd)
        return self._warm(slot, self.arenas[slot])

    def held(self) -> dict[int, Arena]:
        """The arenas that the writer has from the processes before this one. Raises WriterGoneError."""
        with self._answering() as channel:
            channel.send({"op": "held"})
            for slot in channel.receive(_HELD_S)[0]["slots"]:
                _, fd = channel.receive(_HELD_S)
                if fd is not None:
                    self.arenas[slot] = Arena(fd)
        return self.arenas

    def _warm(self, slot: int, arena: Arena) -> Arena:
        try:
            if not arena.is_warm:
                arena.populate()
        except OSError as error:
            self.arenas.pop(slot).close()
            raise MemoryShortError(str(error)) from error
        return arena

    def save(
        self,
        job: Mapping[str, Any],
        progress_fd: int,
        board: Board,
        timeout_s: float,
        durable: Callable[[dict[str, Any]], None],
    ) -> None:
        """Have the arena's content published as ``job`` says, together with the other ranks.

        ``progress_fd`` tells the writer how much of it is in place (progress.py). ``durable`` is called with what the
        writer says of it as soon as it is; the rest of its work goes on. Raises CheckpointError when the save failed,
        on whichever rank, and WriterGoneError.
        """
        deadline = time.monotonic() + timeout_s
        with self._answering() as channel:
            channel.send(job, progress_fd)
            while True:
                message, _ = channel.receive(max(deadline - time.monotonic(), 0.0))
                match message["op"]:
                    case "done":
                        return
                    case "failed":
                        raise error_from_json(message["error"], names_rank=True)
                    case "durable":
                        durable(message)
                    case _:
                        channel.send(_answer(board, message))

    @property
    def pid(self) -> int | None:
        """The writer's process; None before it is known."""
        if self._own is not None:
            return self._own.pid
        return self._channel.peer_pid if self._channel is not None else None

    def kill_process(self) -> None:
        """End the writer now, even one that is stopped: it must not go on reading an arena that is used again."""
        if (pid := self.pid) is not None:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def disconnect(self) -> None:
        """Let go of a writer that may serve others after this process."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        while self.arenas:
            self.arenas.popitem()[1].close()

    def close(self) -> None:
        """Let go of the writer; one of our own ends."""
        self.disconnect()
        if self._own is not None:
            # Without a connection it has nothing to lose.
            self._own.kill()
            # One that waits for a dead file server can't even die; it is not waited for.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._own.wait(_END_S)
            self._own = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    @contextlib.contextmanager
    def _answering(self) -> Iterator[Channel]:
        try:
            yield self._connected()
        except TimeoutError as error:
            raise WriterGoneError("the checkpoint writer does not answer") from error
        except ConnectionError as error:
            raise WriterGoneError(f"the checkpoint writer is gone: {error}") from error

    def _connected(self) -> Channel:
        deadline = time.monotonic() + _START_S
        while self._channel is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.connect(str(self.path))
                self._channel = Channel(sock)
            except OSError as error:
                sock.close()
                is_dead = self._own is not None and self._own.poll() is not None
                # Listening comes before the name: who refuses now has ended.
                if is_dead or isinstance(error, ConnectionRefusedError) or time.monotonic() > deadline:
                    raise ConnectionError(f"can't reach it: {error}") from error
                time.sleep(_PAUSE_S)
        return self._channel


def _answer(board: Board, message: Mapping[str, Any]) -> dict[str, Any]:
    try:
        match message["op"]:
            case "post":
                board.post(message["key"], message["value"].encode())
            case "read":
                return {"value": board.read(message["key"], message["timeout_s"]).decode()}
            case "discard":
                board.discard(message["key"])
    except TimeoutError:
        return {"error": "timeout"}
    except OSError as error:
        return {"error": "gone", "why": str(error)}
    return {}


def gone_error(rank: int, why: str) -> CheckpointError:
    """What a save ends with when its writer is gone."""
    return CheckpointError(
        f"rank {rank}: the save was given up",
        why=why,
        hint="the next save starts a new writer; look for a full memory or a hung file system on this node",
    )
