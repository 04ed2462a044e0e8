"""The checkpoint writer: one process for each rank, which hashes, writes and publishes what is copied into the arena.

``python -m resilient_launch.checkpoint.background.process SOCKET PARENT`` serves one training process after another,
as a worker-group restart brings them, and keeps its arena warm between them. It ends with the process that started it.
It publishes through the store's own protocol; the words between ranks go over the training process's board, so that a
save whose training is gone can't complete behind anybody's back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from resilient_launch.checkpoint.background.arena import Arena, available_bytes
from resilient_launch.checkpoint.background.progress import Listener
from resilient_launch.checkpoint.background.shelf import Shelf, hash_image
from resilient_launch.checkpoint.background.wire import Channel
from resilient_launch.checkpoint.merging import merge_parts
from resilient_launch.checkpoint.store import Digesting, Facts, FileEntry, Published, Rounds, publish
from resilient_launch.checkpoint.store.direct import write_image
from resilient_launch.checkpoint.store.rounds import error_to_json
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId

_LOOK_S = 0.5
"""How often it looks whether whoever started it still lives."""
_ANSWER_S = 60.0
"""How long the training process may take for a word beyond the time that it was asked to wait."""
_MOST_OF_MEMORY = 0.8
"""The part of the available memory that the snapshots of a node may take; the training's own peaks need the rest."""
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class RemoteBoard:
    """The training process's board, asked over the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def post(self, key: str, value: bytes) -> None:
        self._ask({"op": "post", "key": key, "value": value.decode()}, _ANSWER_S)

    def read(self, key: str, timeout_s: float) -> bytes:
        answer = self._ask({"op": "read", "key": key, "timeout_s": timeout_s}, timeout_s + _ANSWER_S)
        if answer.get("error") == "timeout":
            raise TimeoutError(key)
        return str(answer["value"]).encode()

    def discard(self, key: str) -> None:
        self._ask({"op": "discard", "key": key}, _ANSWER_S)

    def _ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        try:
            self._channel.send(message)
            answer, _ = self._channel.receive(timeout_s)
        except TimeoutError:
            raise ConnectionError("the training process does not answer") from None
        if answer.get("error") == "gone":
            raise ConnectionError(answer["why"])
        return answer


class Writer:
    """Serves one connection after another. ``parent`` is the process that it ends with."""

    def __init__(self, listener: socket.socket, parent: int, shelf: Shelf) -> None:
        self._listener, self._parent, self._shelf = listener, parent, shelf
        self._arenas: dict[int, Arena] = {}

    def run(self) -> None:
        self._listener.settimeout(_LOOK_S)
        while os.getppid() == self._parent:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            channel = Channel(connection)
            with contextlib.suppress(ConnectionError):
                self._serve(channel)
            channel.close()

    def _serve(self, channel: Channel) -> None:
        rounds: Rounds | None = None
        while os.getppid() == self._parent:
            try:
                message, fd = channel.receive(_LOOK_S)
            except TimeoutError:
                continue
            if message["op"] == "arena":
                self._give_arena(channel, int(message["slot"]), int(message["num_bytes"]), int(message["num_sharing"]))
                continue
            if message["op"] == "held":
                channel.send({"op": "held", "slots": list(self._arenas)})
                for arena in self._arenas.values():
                    channel.send({"op": "arena"}, arena.fd)
                continue
            assert fd is not None
            try:
                rounds = rounds or Rounds(
                    RemoteBoard(channel), rank=int(message["rank"]), world_size=int(message["world_size"])
                )
                listener = Listener(fd, lambda: channel.is_closed() or os.getppid() != self._parent)
                channel.send(self._save(channel, rounds, listener, message))
            finally:
                os.close(fd)

    def _give_arena(self, channel: Channel, slot: int, num_bytes: int, num_sharing: int) -> None:
        if slot not in self._arenas or self._arenas[slot].num_bytes < num_bytes:
            if slot in self._arenas:
                self._arenas.pop(slot).close()
            left_bytes = int(_MOST_OF_MEMORY * available_bytes()) // num_sharing
            if num_bytes > left_bytes:
                why = f"a snapshot needs {num_bytes} bytes of memory, {left_bytes} can be spared"
                channel.send({"op": "refused", "why": why})
                return
            try:
                self._arenas[slot] = Arena.create(num_bytes)
            except OSError as error:
                channel.send({"op": "refused", "why": str(error)})
                return
        channel.send({"op": "arena", "num_bytes": self._arenas[slot].num_bytes}, self._arenas[slot].fd)

    def _save(self, channel: Channel, rounds: Rounds, listener: Listener, job: dict[str, Any]) -> dict[str, Any]:
        written = 0.0
        arena = self._arenas[job["slot"]]
        chunks: tuple[str, ...] = ()
        ident = CheckpointId(attempt=job["attempt"], restart=job["restart"], step=job["step"])
        digesting = Digesting(algorithm=job["algorithm"], chunk_bytes=job["chunk_bytes"])
        round_ = rounds.start(job["round"], float(job["timeout_s"]))

        def write(directory: Path) -> list[FileEntry]:
            nonlocal written, chunks
            entry = write_image(
                directory,
                job["shard"],
                arena.view,
                job["num_bytes"],
                algorithm=digesting.algorithm,
                chunk_bytes=digesting.chunk_bytes,
                await_bytes=listener.await_bytes,
            )
            written = time.monotonic()
            chunks = entry.chunks
            return [entry]

        def announce(published: Published) -> None:
            commit_s = time.monotonic() - written
            channel.send({"op": "durable", "num_bytes": published.num_bytes, "commit_s": commit_s})

        try:
            publish(
                Path(job["directory"]),
                ident,
                round_,
                part=job["part"],
                merge=lambda parts: merge_parts(parts, job["trees"]),
                write=write,
                facts=Facts(**job["facts"]),
                digesting=digesting,
                announce=announce,
                without_rename=job["without_rename"],
            )
        except CheckpointError as error:
            return {"op": "failed", "error": error_to_json(error, round_.rank)}
        except Exception as error:
            # Whatever it is, it fails this save alone; the next one may find the world in better order.
            return {"op": "failed", "error": error_to_json(round_.fail(error), round_.rank)}
        finally:
            if job["is_kept"] and listener.is_whole(job["num_bytes"]):
                self._shelve(job, arena, chunks)
        return {"op": "done"}

    def _shelve(self, job: dict[str, Any], arena: Arena, chunks: tuple[str, ...]) -> None:
        """Whatever became of the file, the snapshot is whole, and the next worker group may go on from it."""
        chunks = chunks or hash_image(
            arena.view, job["num_bytes"], algorithm=job["algorithm"], chunk_bytes=job["chunk_bytes"]
        )
        # Without a label it is not used, and that is all that is lost.
        with contextlib.suppress(OSError):
            self._shelf.put(job["slot"], job, chunks)


def main(path: str, parent: int) -> None:
    # The end of the training is the training's to decide; this process only has to see it through.
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Bound aside and renamed, so that nobody who finds the socket is turned away from it.
    listener.bind(f"{path}.new")
    listener.listen()
    Path(f"{path}.new").rename(path)
    Writer(listener, parent, Shelf(Path(path))).run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
