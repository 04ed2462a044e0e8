"""Saving while training goes on: the training waits for the copy, a thread of its own for the writer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from resilient_launch.checkpoint.background.client import Client, MemoryShortError, WriterGoneError, gone_error
from resilient_launch.checkpoint.background.progress import Teller
from resilient_launch.checkpoint.background.staging import Stager
from resilient_launch.checkpoint.dcp import shard_name
from resilient_launch.checkpoint.store import Board, Digesting, Facts, Round
from resilient_launch.checkpoint.store.litter import discard_unpublished
from resilient_launch.checkpoint.train_state import Capture
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId

_LOG = logging.getLogger(__name__)
_OTHERS_SHARE, _OTHERS_S = 1.25, 6.0
"""How much longer than the round's own deadline its writer may take, before it is taken for stuck and killed."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A published save: seconds from the end of the copy to all files being durable, and from there to the commit."""

    num_bytes: int
    write_s: float
    commit_s: float


@dataclass(frozen=True, kw_only=True)
class Job:
    """One save, as every rank knows it before it is staged."""

    directory: Path
    id: CheckpointId
    round_name: str
    timeout_s: float
    facts: Facts
    digesting: Digesting


class _Copy:
    """A copy under way: ``teller`` tells the writer how far it is; ``ended`` is on the monotonic clock."""

    def __init__(self) -> None:
        self.teller, self.is_over, self.ended = Teller(), threading.Event(), 0.0


class Background:
    """This rank's writer, its arena, and the save in flight, of which there is one at most.

    ``socket`` is where a node agent's writer for this rank listens; None starts one that ends with this process.
    ``num_sharing`` ranks share the node's memory. For the training thread alone.
    """

    def __init__(
        self, board: Board, *, rank: int, world_size: int, socket: Path | None = None, num_sharing: int = 1
    ) -> None:
        self._board, self._rank, self._world_size, self._num_sharing = board, rank, world_size, num_sharing
        self._stager = Stager(rank, world_size, num_sharing)
        self._client: Client | None = Client(socket)
        self._thread: threading.Thread | None = None
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
        arena = self._client.arena if self._client is not None else None
        return arena.num_bytes if arena is not None else 0

    def warm_up(self, capture: Capture) -> None:
        """Get the arena ready in a thread, so that the first save does not have to wait for it."""
        num_bytes = self._stager.layout(capture).num_bytes
        self._run(lambda: self._prepare(num_bytes))

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
        layout = self._stager.layout(capture)
        client = self._prepare(layout.num_bytes)
        if client is None or client.arena is None:
            return False
        message: dict[str, Any] = {
            "op": "save",
            "rank": self._rank,
            "world_size": self._world_size,
            "directory": str(job.directory),
            "attempt": job.id.attempt,
            "restart": job.id.restart,
            "step": job.id.step,
            "round": job.round_name,
            "timeout_s": job.timeout_s,
            "facts": asdict(job.facts),
            "algorithm": job.digesting.algorithm,
            "chunk_bytes": job.digesting.chunk_bytes,
            "shard": shard_name(self._rank),
            "num_bytes": layout.num_bytes,
            "trees": capture.trees if self._rank == 0 else {},
            "part": {"tensors": layout.tensors, "own": capture.own, "agreement": capture.agreement},
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
            self._stager.copy(capture, client.arena, copy.teller.tell)
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
        self._stager.close()
        if self._client is not None:
            self._client.close()
            self._client = None

    def _run(self, act: Callable[[], object]) -> None:
        self.join()
        self._thread = threading.Thread(target=act, name="rlaunch-save", daemon=True)
        self._thread.start()

    def _prepare(self, num_bytes: int) -> Client | None:
        """The writer with an arena that is large enough; None, and ``refusal``, where there can't be one."""
        self._refusal = ""
        for _ in range(2):
            try:
                client = self._client = self._client or Client()
                if client.arena is None or client.arena.num_bytes < num_bytes:
                    self._stager.close()
                client.prepare(num_bytes, self._num_sharing)
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
        self._stager.close()
        if self._client is not None:
            self._client.kill_process()
            self._client.close()
            self._client = None

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
