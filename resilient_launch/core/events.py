"""The one event vocabulary that a real job, the fake cluster's rehearsals and the simulator share.

A file holds one JSON object a line, written by one process and only ever appended to. Every line carries ``v`` (schema
version), ``kind``, ``t`` (wall clock, seconds since the epoch), ``mono`` (monotonic clock of its node, seconds) and the
writer's identity: ``attempt``, ``restart`` (worker-group restart), ``node`` (index in the gang), ``rank`` (global rank;
absent from a node agent's lines). ``KINDS`` says which further fields a kind must have; it may have more.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

SCHEMA = 1

KINDS: dict[str, frozenset[str]] = {
    # An attempt's claim: job_id, slurm_restart_count, nodes (names).
    "attempt": frozenset({"job_id", "slurm_restart_count", "nodes"}),
    # A rank, or a node agent, enters a phase: init, rendezvous, restore, step, eval, save, leave. With the first step a
    # rank says, where it knows, `until` which count of completed steps the loop goes.
    "phase": frozenset({"phase"}),
    # A window of steps: `first` is the index of its first step (count before it), `end_s` the monotonic end of every
    # step relative to `mono0`. Arrays keep a run of 10^7 steps readable. `local_s` is what steps cost this rank by
    # itself, 0 where that was not timed, from step `local_first` on (without it, from `first`).
    "window": frozenset({"first", "mono0", "end_s"}),
    # Values a script logged for a step; the newest attempt's line wins for a step logged twice.
    "metric": frozenset({"step", "values"}),
    # One save: begin -> staged (training may go on) -> durable, or failed. `reason` is why it was made.
    "checkpoint": frozenset({"step", "status", "reason"}),
    # Word that the end is near reached this node.
    "notice": frozenset({"cause", "deadline", "source"}),
    # Node agents agreed on (or withdrew) a step to save at.
    "agreement": frozenset({"round", "step", "status", "reason"}),
    # A rule was applied: `what` was decided, and `why`.
    "decision": frozenset({"what", "why"}),
    # No rank moves any more: found, then withdrawn (one moved after all), suspected (it may yet move) or
    # confirmed (the group is ended). `culprit`
    # is the rank that the others wait for, None where none stands out, and `culprit_node` its node's name.
    "hang": frozenset({"status", "culprit", "culprit_node", "why"}),
    # Slow for three windows running: `scope` is rank, node or all; `ratio` is against the peers, or for all, the past.
    "straggler": frozenset({"scope", "ranks", "nodes", "ratio", "window"}),
    # Training goes on from `resume_step`; `rework_steps` will be computed again. `tier` is where the state came from,
    # shared storage or local memory, `tier_why` why that, where both were looked at.
    "resume": frozenset(
        {"resume_step", "rework_steps", "world_size", "slurm_restart_count", "torchelastic_restart_count", "last_cause"}
    ),
    # Steps that were computed again against what was logged of them before: same, or differs (`name`, `before`, `now`
    # at the first step that does).
    "rework": frozenset({"status", "step", "num_compared"}),
    # A worker group began on this node: `pids` is rank -> process id.
    "group_begin": frozenset({"pids"}),
    # A worker group ended: `exits` is rank -> exit code.
    "group_end": frozenset({"exits"}),
    # The attempt ended.
    "end": frozenset({"cause", "step"}),
}

_NOTHING: frozenset[str] = frozenset()

CHECKPOINT_STATUS = ("begin", "staged", "durable", "failed")


class EventWriter:
    """Appends one process's events to a file of its own.

    Lines are buffered and handed to the kernel when ``flush`` is called, when 64 KiB wait, or when a second has passed
    since the last hand-over; nothing is fsynced, so that the step loop never waits for a disk. Safe for several
    threads. ``emit`` raises
    ValueError for an unknown kind or a missing field; a full disk is remembered in ``lost`` and never raised, because
    no event is worth a training run.
    """

    def __init__(self, path: Path, **identity: Any) -> None:
        self._path = path
        self._identity = identity
        self._lines: list[bytes] = []
        self._num_bytes = 0
        self._flushed_at = time.monotonic()
        self._fd: int | None = None
        self._lock = threading.RLock()
        self.lost = 0

    def identify(self, **identity: Any) -> None:
        """Change what later lines say of their writer, such as its worker-group restart."""
        self._identity.update(identity)

    def emit(self, kind: str, *, flush: bool = False, **fields: Any) -> None:
        """Record one event now. ``flush`` hands it to the kernel at once."""
        missing = KINDS[kind] - fields.keys() if kind in KINDS else {"a known kind"}
        if missing:
            raise ValueError(f"event {kind!r} lacks {', '.join(sorted(missing))}")
        mono = time.monotonic()
        record = {"v": SCHEMA, "kind": kind, "t": round(time.time(), 6), "mono": round(mono, 6)}
        line = json.dumps({**record, **self._identity, **fields}, separators=(",", ":"), default=str).encode() + b"\n"
        with self._lock:
            self._lines.append(line)
            self._num_bytes += len(line)
            if flush or self._num_bytes > 65536 or mono - self._flushed_at > 1.0:
                self.flush()

    def flush(self) -> None:
        """Hand every buffered line to the kernel in one append."""
        with self._lock:
            self._flushed_at = time.monotonic()
            if not self._lines:
                return
            data, count = b"".join(self._lines), len(self._lines)
            self._lines.clear()
            self._num_bytes = 0
            try:
                if self._fd is None:
                    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                    self._fd = os.open(self._path, flags, 0o644)
                os.write(self._fd, data)
            except OSError:
                self.lost += count

    def close(self) -> None:
        self.flush()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


GZIP = b"\x1f\x8b"
"""How a packed file begins."""
DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile)
"""What reading a packed file raises where it is cut off or damaged."""


def open_events(path: Path) -> IO[bytes]:
    """Open one file's lines for reading, packed or not. Raises OSError; reading a damaged one raises ``DAMAGE``."""
    # Lines whose beginning was overwritten may begin like a packed file; every line begins with a brace.
    with path.open("rb") as file, gzip.GzipFile(fileobj=file) as packed, contextlib.suppress(*DAMAGE):
        if packed.peek(1)[:1] == b"{":
            return cast("IO[bytes]", gzip.open(path))
    return path.open("rb")


def pack_events(path: Path) -> int:
    """Compress a file that nobody writes any more, in place, byte for byte. Returns how many bytes that gave back.

    The name and the time of its last change stay. One that is packed already, or still grows, is left as it is.
    Raises OSError.
    """
    before = path.stat()
    temporary = path.with_name(f".pack-{path.name}")
    try:
        with path.open("rb") as source, temporary.open("wb") as target:
            data = source.read(len(GZIP))
            if data == GZIP:
                return 0
            with gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=0) as packed:
                while data:
                    packed.write(data)
                    data = source.read(1 << 20)
            target.flush()
            os.fsync(target.fileno())
        os.utime(temporary, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = path.stat()
        saved = before.st_size - temporary.stat().st_size
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns) or saved <= 0:
            return 0
        temporary.replace(path)
        return saved
    finally:
        temporary.unlink(missing_ok=True)


def read_events(files: Path | Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Every readable event of a directory's ``*.jsonl`` files, or of the files given, file by file in name order.

    A torn last line, a line that is not a JSON object, one that lacks a field of its kind and a file that vanished are
    passed over; unknown kinds of a newer version are passed on.
    """
    paths = sorted(files.glob("*.jsonl")) if isinstance(files, Path) else files
    for path in paths:
        try:
            with open_events(path) as lines:
                for line in lines:
                    if not line.endswith(b"\n"):
                        continue
                    try:
                        record = json.loads(line)
                    except (ValueError, RecursionError):
                        continue
                    if not isinstance(record, dict) or not isinstance(kind := record.get("kind"), str):
                        continue
                    if KINDS.get(kind, _NOTHING) <= record.keys():
                        yield record
        except (FileNotFoundError, *DAMAGE):
            continue
