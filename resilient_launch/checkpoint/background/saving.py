"""Saving while training goes on: the training waits for the copy, a thread of its own for the writer."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from resilient_launch.checkpoint.background.arena import Arena
from resilient_launch.checkpoint.background.client import Client, MemoryShortError, WriterGoneError, gone_error
from resilient_launch.checkpoint.background.peers import LOOPBACK
from resilient_launch.checkpoint.background.progress import Teller
from resilient_launch.checkpoint.background.shelf import NUM_SLOTS, Label, Shelf, hash_image
from resilient_launch.checkpoint.background.staging import Stager
from resilient_launch.checkpoint.layout import index_part, shard_name
from resilient_launch.checkpoint.outcomes import Written
from resilient_launch.checkpoint.store import Board, Digesting, Facts, Round
from resilient_launch.checkpoint.store.litter import discard_unpublished
from resilient_launch.checkpoint.train_state import Capture
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId

_LOG = logging.getLogger(__name__)
_OTHERS_SHARE, _OTHERS_S = 1.25, 6.0
"""How much longer than the round's own deadline its writer may take, before it is taken for stuck and killed."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One save, as every rank knows it before it is staged; of a snapshot that is not written, what it would be."""

    directory: Path
    id: CheckpointId
    round_name: str
    timeout_s: float
    facts: Facts
    digesting: Digesting
    without_rename: bool = False


class _Copy:
    """A copy under way: ``teller`` tells the writer how far it is; ``ended`` is on the monotonic clock."""

    def __init__(self) -> None:
        self.teller, self.is_over, self.ended = Teller(), threading.Event(), 0.0


class Background:
    """This rank's writer, its arenas, and the save in flight, of which there is one at most.

    ``socket`` is where a node agent's writer for this rank listens; None starts one that ends with this process.
    ``num_sharing`` ranks share the node's memory. ``has_spare``: a second arena, for snapshots that are not written and
    while one of them is being overwritten. ``is_left_behind``: snapshots in the memory of a node agent's writer are for
    the worker group that starts again there. ``addresses`` are where the other ranks may reach this one. For the
    training thread alone.
    """

    def __init__(
        self,
        board: Board,
        *,
        rank: int,
        world_size: int,
        socket: Path | None = None,
        num_sharing: int = 1,
        has_spare: bool = False,
        is_left_behind: bool = True,
        addresses: Sequence[str] = (LOOPBACK,),
    ) -> None:
        self._board, self._rank, self._world_size, self._num_sharing = board, rank, world_size, num_sharing
        self.is_outlived = socket is not None and is_left_behind
        """Whether the writer stays when this process goes, and with it what lies in its memory."""
        num_slots = NUM_SLOTS if has_spare and self.is_outlived else 1
        self._stagers = [Stager(rank, world_size, num_sharing) for _ in range(num_slots)]
        self._client: Client | None = Client(socket)
        self._shelf = Shelf(socket) if socket is not None and is_left_behind else None
        self.addresses = tuple(addresses)
        self._newest_slot = self._saved_slot = num_slots - 1
        self._num_captures = 0
        self._thread: threading.Thread | None = None
        self._hashing: threading.Thread | None = None
        self._lock = threading.RLock()
        self._refusal = ""

    @property
    def refusal(self) -> str:
        """Why the last save was not made in the background; empty where it was."""
        return self._refusal

    @property
    def writer_pid(self) -> int | None:
        """The writer's process; None where there is none."""
        return self._client.pid if self._client is not None else None

    @property
    def arena_bytes(self) -> int:
        """Size of the memory that snapshots are copied into."""
        return sum(arena.num_bytes for arena in self._client.arenas.values()) if self._client is not None else 0

    def warm_up(self, capture: Capture) -> None:
        """Get the arenas ready in a thread, so that the first save does not have to wait for it."""
        num_bytes = self._stagers[0].layout(capture).num_bytes
        self._run(lambda: [self._prepare(num_bytes, slot) for slot in range(len(self._stagers))])

    def begin(
        self,
        job: Job,
        capture: Capture,
        *,
        staged: Callable[[], object],
        finish: Callable[[Written | CheckpointError], None],
        tidy: Callable[[], object],
    ) -> bool:
        """Copy the state, after the save in flight; whether there was room for it. The writer writes it meanwhile.

        ``staged`` is called when it is copied, and then, in a thread, ``finish`` when it is durable, or with the first
        error of any rank: nothing is published where there was one, be it in copying. ``tidy`` is called last, after a
        success. Raises nothing for a want of memory: the save can still be made in the foreground.
        """
        self.join()
        self._refusal = ""
        self._num_captures += 1
        while not self._has_room(capture, slot := self._beside(self._newest_slot)):
            if slot == 0:
                return False
        client = self._client
        assert client is not None
        self._saved_slot = slot
        message = {
            **self._record(job, capture, slot),
            "op": "save",
            "directory": str(job.directory),
            "round": job.round_name,
            "timeout_s": job.timeout_s,
            "without_rename": job.without_rename,
            "is_kept": self._shelf is not None,
        }
        copy = _Copy()

        def see_through() -> None:
            error = self._publish(client, job, message, copy, finish)
            copy.is_over.wait()
            copy.teller.close()
            if error is not None:
                finish(error)
            else:
                tidy()

        self._run(see_through)
        try:
            self._copy(capture, slot, copy.teller.tell)
        except Exception:
            _LOG.exception("the state of step %d can't be copied", job.id.step)
            copy.teller.give_up()
        except BaseException:
            copy.teller.give_up()
            raise
        finally:
            staged()
            copy.ended = time.monotonic()
            copy.is_over.set()
        return True

    def keep(self, job: Job, capture: Capture) -> bool:
        """Copy the state into this node's memory alone, for a worker group that starts again here; whether it was.

        Never waits for a save in flight, whose copy stays as it is. Needs ``has_spare``: while one arena is overwritten
        the other one holds a whole snapshot.
        """
        self._num_captures += 1
        # The save in flight may find its writer dead, and would then let go of the arenas.
        with self._lock:
            shelf, is_idle = self._shelf, self.join(0.0)
            slot = self._beside(self._newest_slot if is_idle else self._saved_slot)
            if shelf is None or not self._has_spare or not self._has_room(capture, slot, may_ask=is_idle):
                return False
            arena = self._copy(capture, slot)
            record = self._record(job, capture, slot)

            def hash_and_label() -> None:
                chunks = hash_image(
                    arena.view,
                    record["num_bytes"],
                    algorithm=job.digesting.algorithm,
                    chunk_bytes=job.digesting.chunk_bytes,
                )
                # Without a label it is not used, and that is all that is lost.
                with contextlib.suppress(OSError):
                    shelf.put(slot, record, chunks)

            self._hashing = threading.Thread(target=hash_and_label, name="rlaunch-hash", daemon=True)
            self._hashing.start()
        return True

    def kept(self) -> list[tuple[Label, Arena]]:
        """Whole snapshots that worker groups before this one have left in the writer's memory.

        Raises WriterGoneError, and OSError where the memory can't be mapped.
        """
        shelf = self._shelf
        if shelf is None or self._client is None:
            return []
        try:
            arenas = self._client.held()
        except WriterGoneError:
            # One that is stuck would answer this question later, when another one was asked.
            self._drop()
            raise
        return [(label, arenas[label.slot]) for label in shelf.labels() if label.slot in arenas]

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the save in flight; whether it is over."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for the save in flight, at most so long, and let go of the writer."""
        if not self.join(timeout_s) and self._client is not None:
            # Its thread hears of it at once.
            self._client.kill_process()
            self.join()
        self._end_hashing()
        self._close_stagers()
        if self._client is not None:
            self._client.close()
            self._client = None

    def _run(self, act: Callable[[], object]) -> None:
        self.join()
        self._thread = threading.Thread(target=act, name="rlaunch-save", daemon=True)
        self._thread.start()

    @property
    def _has_spare(self) -> bool:
        return len(self._stagers) > 1

    def _beside(self, slot: int) -> int:
        """The other arena, or the only one."""
        return (slot + 1) % len(self._stagers)

    def _has_room(self, capture: Capture, slot: int, *, may_ask: bool = True) -> bool:
        """Whether arena ``slot`` is large enough, or the writer, if it may be asked, makes it so.

        A spare one that there is no memory for is given up.
        """
        self._end_hashing()
        num_bytes = self._stagers[slot].layout(capture).num_bytes
        known = self._client.arenas.get(slot) if self._client is not None else None
        if known is not None and known.num_bytes >= num_bytes and known.is_warm:
            return True
        if not may_ask:
            return False
        if self._shelf is not None:
            self._shelf.take_away(slot)
        if self._prepare(num_bytes, slot) is not None:
            return True
        if slot > 0:
            self._stagers.pop().close()
            self._newest_slot = self._saved_slot = 0
        return False

    def _copy(self, capture: Capture, slot: int, progress: Callable[[int], object] = lambda num_bytes: None) -> Arena:
        """Overwrite arena ``slot``, which there is; ``progress`` hears how far it is."""
        assert self._client is not None
        if self._shelf is not None:
            self._shelf.take_away(slot)
        arena = self._client.arenas[slot]
        self._stagers[slot].copy(capture, arena, progress)
        self._newest_slot = slot
        return arena

    def _record(self, job: Job, capture: Capture, slot: int) -> dict[str, Any]:
        """What is in arena ``slot``, as JSON: all that the writer and a later worker group need to know of it."""
        layout = self._stagers[slot].layout(capture)
        return {
            "slot": slot,
            "number": self._num_captures,
            "captured_at": time.time(),
            "rank": self._rank,
            "world_size": self._world_size,
            "attempt": job.id.attempt,
            "restart": job.id.restart,
            "step": job.id.step,
            "facts": asdict(job.facts),
            "algorithm": job.digesting.algorithm,
            "chunk_bytes": job.digesting.chunk_bytes,
            "shard": shard_name(self._rank),
            "num_bytes": layout.num_bytes,
            "trees": capture.trees if self._rank == 0 else {},
            "part": index_part(layout, capture),
        }

    def _prepare(self, num_bytes: int, slot: int) -> Client | None:
        """The writer with an arena that is large enough; None, and ``refusal``, where there can't be one."""
        self._refusal = ""
        for _ in range(2):
            try:
                client = self._client = self._client or Client()
                known = client.arenas.get(slot)
                if known is None or known.num_bytes < num_bytes:
                    self._stagers[slot].close()
                client.prepare(num_bytes, self._num_sharing, slot)
                return client
            except MemoryShortError as error:
                self._refusal = str(error)
                return None
            except (WriterGoneError, OSError) as error:
                # One that a node agent had started long ago may be gone; one of our own takes its place.
                self._refusal = str(error)
                self._drop()
        return None

    def _drop(self) -> None:
        with self._lock:
            self._end_hashing()
            self._close_stagers()
            # Whoever comes after this process can't reach a writer of its own.
            self._shelf = None
            if self._client is not None:
                self._client.kill_process()
                self._client.close()
                self._client = None

    def _close_stagers(self) -> None:
        for stager in self._stagers:
            stager.close()

    def _end_hashing(self) -> None:
        if self._hashing is not None:
            self._hashing.join()
            self._hashing = None

    def _publish(
        self,
        client: Client,
        job: Job,
        message: Mapping[str, Any],
        copy: _Copy,
        finish: Callable[[Written | CheckpointError], None],
    ) -> CheckpointError | None:
        """Why it failed; None where it is durable, and ``finish`` told so."""
        began = time.monotonic()
        is_durable = False

        def durable(word: Mapping[str, Any]) -> None:
            nonlocal is_durable
            is_durable = True
            copy.is_over.wait()
            write_s = max(time.monotonic() - copy.ended - word["commit_s"], 0.0)
            finish(Written(num_bytes=word["num_bytes"], write_s=write_s, commit_s=word["commit_s"]))

        try:
            client.save(message, copy.teller.fd, self._board, job.timeout_s * _OTHERS_SHARE + _OTHERS_S, durable)
        except CheckpointError as error:
            return None if is_durable else error
        except Exception as error:
            # Not under the copy's feet.
            copy.is_over.wait()
            # The arena is not used again before its reader is dead for certain: a snapshot can't be torn.
            self._drop()
            if is_durable:
                return None
            failure = gone_error(self._rank, str(error) or type(error).__name__)
            left_s = max(job.timeout_s - (time.monotonic() - began), 0.0)
            round_ = Round(self._board, job.round_name, rank=self._rank, world_size=self._world_size, deadline_s=left_s)
            round_.fail(failure)
            if self._rank == 0:
                discard_unpublished(job.directory, job.id)
            return failure
        return None
