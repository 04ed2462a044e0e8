"""Stores as they are often written first, to show that the tests of what goes wrong in the field can fail.

Where one would wait for ever it says so instead.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Hinder = Callable[[int, Path], None]
Clock = Callable[[int], float]


class ForeverError(Exception):
    """A rank waits for one that is dead."""


class NaiveStore:
    """``world`` ranks as threads. Each names, writes, renames and deletes by itself; ``keep`` old ones are left."""

    def __init__(self, directory: Path, world: int, keep: int = 2) -> None:
        self.directory, self.world, self.keep = directory, world, keep

    def save(
        self,
        step: int,
        data: Sequence[bytes],
        *,
        attempt: int = 0,
        hinder: Hinder | None = None,
        dead: Collection[int] = (),
        clock: Clock = lambda rank: time.time(),
    ) -> list[Any]:
        """What each rank makes of it: None when it is content, an exception, or None for a dead one."""
        living = [rank for rank in range(self.world) if rank not in dead]
        meeting = _Meeting(living, self.world)

        def act(rank: int) -> None:
            # The second is in the name, so that it is new each time.
            directory = self.directory / f"step-{step}-{int(clock(rank))}"
            temporary = directory.with_name(f"{directory.name}.tmp")
            with contextlib.suppress(FileExistsError):
                temporary.mkdir()
            writer = threading.Thread(target=_write, args=(temporary, rank, data[rank], hinder))
            writer.start()
            # An error in the thread goes nowhere.
            writer.join()
            meeting.wait()
            temporary.rename(directory)
            (self.directory / "LATEST").write_text(directory.name)
            meeting.wait()
            self._prune()

        def caught(rank: int) -> Any:
            try:
                act(rank)
            except Exception as error:
                # Whoever meets the others no more lets them wait.
                meeting.abandon()
                return error

        with ThreadPoolExecutor(self.world) as pool:
            results = dict(zip(living, pool.map(caught, living), strict=True))
        return [results.get(rank) for rank in range(self.world)]

    def _prune(self) -> None:
        for old in self.published()[: -self.keep]:
            shutil.rmtree(old)

    def published(self) -> list[Path]:
        """Oldest first."""
        found = [path for path in self.directory.glob("step-*") if path.suffix != ".tmp"]
        return sorted(found, key=lambda path: int(path.name.split("-")[1]))

    def load(self, *, attempt: int = 9) -> tuple[int, list[bytes]] | None:
        """What LATEST names; a fresh start where there is none."""
        latest = self.directory / "LATEST"
        if not latest.exists():
            return None
        directory = self.directory / latest.read_text()
        return int(directory.name.split("-")[1]), [
            (directory / f"shard-{rank}.bin").read_bytes() for rank in range(self.world)
        ]


class OneActorStore(NaiveStore):
    """One rank publishes for all; the step alone is the name, and what stands in the way of it is moved aside."""

    def save(self, step: int, data: Sequence[bytes], *, hinder: Hinder | None = None, **options: Any) -> list[Any]:
        directory = self.directory / f"step-{step}"
        temporary = directory.with_name(f"{directory.name}.tmp")
        temporary.mkdir()
        writers = [
            threading.Thread(target=_write, args=(temporary, rank, data[rank], hinder)) for rank in range(self.world)
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            # An error in the thread goes nowhere.
            writer.join()
        if directory.exists():
            directory.rename(directory.with_name(f"old-{directory.name}"))
        temporary.rename(directory)
        (self.directory / "LATEST").write_text(directory.name)
        return [None] * self.world


class StrictNameStore(NaiveStore):
    """One rank makes the directory, which must not exist, and the others wait until it has."""

    def save(self, step: int, data: Sequence[bytes], *, hinder: Hinder | None = None, **options: Any) -> list[Any]:
        made = self.directory / f"step-{step}"
        try:
            made.mkdir()
        except FileExistsError as error:
            return [error, *[ForeverError("rank 0")] * (self.world - 1)]
        for rank in range(self.world):
            _write(made, rank, data[rank], hinder)
        return [None] * self.world


class _Meeting:
    """A barrier of all ranks, the dead ones included."""

    def __init__(self, living: Sequence[int], world: int) -> None:
        self._barrier = threading.Barrier(len(living))
        self._is_complete = len(living) == world

    def abandon(self) -> None:
        self._barrier.abort()

    def wait(self) -> None:
        try:
            self._barrier.wait(60)
        except threading.BrokenBarrierError as error:
            raise ForeverError("a rank that failed") from error
        if not self._is_complete:
            raise ForeverError("a dead rank")


def _write(directory: Path, rank: int, data: bytes, hinder: Hinder | None) -> None:
    with contextlib.suppress(OSError):
        if hinder is not None:
            hinder(rank, directory)
        (directory / f"shard-{rank}.bin").write_bytes(data)
