"""Verifying whole checkpoints from outside, on several threads, without condemning anything."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from resilient_launch.checkpoint.store.choose import OpenCheckpoint, Standing, open_checkpoint
from resilient_launch.checkpoint.store.errors import DamagedError
from resilient_launch.checkpoint.store.files import FileReader
from resilient_launch.checkpoint.store.manifest import MANIFEST_NAME, FileEntry, Manifest
from resilient_launch.checkpoint.store.survey import standing_of
from resilient_launch.core.errors import CheckpointError

_PIECE_BYTES = 64 << 20
"""What one thread takes on at a time: enough that a file's opening costs nothing, little enough to share a file."""


class Integrity(StrEnum):
    """What verifying a checkpoint found."""

    INTACT = "intact"
    BIT_FLIPPED = "bit-flipped"
    TRUNCATED = "truncated"
    TOO_LONG = "too long"
    SHARD_MISSING = "shard-missing"
    MANIFEST_DAMAGED = "manifest-damaged"
    FOREIGN = "foreign"
    UNSUPPORTED = "unsupported"
    UNREADABLE = "unreadable"


_OF_MANIFEST = {
    Standing.DAMAGED: Integrity.MANIFEST_DAMAGED,
    Standing.FOREIGN: Integrity.FOREIGN,
    Standing.UNSUPPORTED: Integrity.UNSUPPORTED,
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is wrong with one file."""

    file: str
    kind: Integrity
    why: str


@dataclass(frozen=True, kw_only=True)
class Verified:
    """One checkpoint's verdict: the worst of its problems, or INTACT. ``num_bytes`` were read."""

    name: str
    integrity: Integrity
    num_bytes: int
    problems: tuple[Problem, ...] = ()

    @property
    def is_intact(self) -> bool:
        return self.integrity is Integrity.INTACT


@dataclass(frozen=True)
class _Piece:
    path: Path
    manifest: Manifest
    entry: FileEntry
    start: int
    stop: int


def verify(
    paths: Sequence[Path],
    *,
    run_id: str = "",
    num_threads: int | None = None,
    on_start: Callable[[int], None] = lambda total_bytes: None,
    on_progress: Callable[[int], None] = lambda num_bytes: None,
) -> list[Verified]:
    """Read every byte of these checkpoints and compare it with their manifests; one verdict each, in order.

    ``on_start`` hears how many bytes there are, ``on_progress`` of each piece that is done, both in this thread.
    """
    pieces: list[_Piece] = []
    problems: dict[Path, list[Problem]] = {path: [] for path in paths}
    for path in paths:
        try:
            with open_checkpoint(path, run_id) as opened:
                for entry in opened.manifest.files:
                    problem = _shape(opened, entry)
                    if problem is None:
                        pieces += _pieces(path, opened.manifest, entry)
                    else:
                        problems[path].append(problem)
        except CheckpointError as error:
            kind = _OF_MANIFEST.get(standing_of(error), Integrity.UNREADABLE)
            problems[path].append(Problem(file=MANIFEST_NAME, kind=kind, why=_why(error)))
    on_start(sum(piece.stop - piece.start for piece in pieces))
    num_read = dict.fromkeys(paths, 0)
    pool = ThreadPoolExecutor(num_threads or min(8, os.cpu_count() or 1))
    try:
        for piece, problem in zip(pieces, pool.map(_check, pieces), strict=True):
            if problem is not None and not any(known.file == problem.file for known in problems[piece.path]):
                problems[piece.path].append(problem)
            num_read[piece.path] += piece.stop - piece.start
            on_progress(piece.stop - piece.start)
    finally:
        # Whoever is interrupted does not want the rest to be read.
        pool.shutdown(cancel_futures=True)
    return [_verdict(path, problems[path], num_read[path]) for path in paths]


def _verdict(path: Path, problems: list[Problem], num_bytes: int) -> Verified:
    # A missing shard says more than a flipped bit, and a manifest that is none says all.
    order = list(Integrity)
    worst = max((problem.kind for problem in problems), key=order.index, default=Integrity.INTACT)
    return Verified(name=path.name, integrity=worst, num_bytes=num_bytes, problems=tuple(problems))


def _shape(opened: OpenCheckpoint, entry: FileEntry) -> Problem | None:
    """What can be seen without reading the file."""
    try:
        found = (opened.path / entry.name).lstat()
    except FileNotFoundError:
        return Problem(file=entry.name, kind=Integrity.SHARD_MISSING, why="it is listed in the manifest and not there")
    except OSError as error:
        return Problem(file=entry.name, kind=Integrity.UNREADABLE, why=str(error.strerror))
    if not stat.S_ISREG(found.st_mode):
        return Problem(file=entry.name, kind=Integrity.SHARD_MISSING, why="something else than a file has its name")
    if found.st_size != entry.size:
        kind = Integrity.TRUNCATED if found.st_size < entry.size else Integrity.TOO_LONG
        return Problem(file=entry.name, kind=kind, why=f"{found.st_size} bytes instead of {entry.size}")
    return None


def _pieces(path: Path, manifest: Manifest, entry: FileEntry) -> Iterator[_Piece]:
    step = max(_PIECE_BYTES // entry.chunk_bytes, 1) * entry.chunk_bytes
    for start in range(0, entry.size, step):
        yield _Piece(path, manifest, entry, start, min(start + step, entry.size))


def _check(piece: _Piece) -> Problem | None:
    entry = piece.entry
    buffer = memoryview(bytearray(min(entry.chunk_bytes, piece.stop - piece.start)))
    try:
        with FileReader(piece.path, entry, piece.manifest.algorithm) as reader:
            for start in range(piece.start, piece.stop, entry.chunk_bytes):
                reader.read_into(start, buffer[: min(entry.chunk_bytes, piece.stop - start)])
    except DamagedError as error:
        return Problem(file=entry.name, kind=Integrity.BIT_FLIPPED, why=_why(error))
    except CheckpointError as error:
        return Problem(file=entry.name, kind=Integrity.UNREADABLE, why=_why(error))
    return None


def _why(error: CheckpointError) -> str:
    return f"{error.what}, {error.why}" if error.why else error.what
