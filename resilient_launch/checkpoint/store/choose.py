"""Choosing what to resume from: the newest checkpoint of this lineage that verifies, and why not the others."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Generic, TypeVar

from resilient_launch.checkpoint.store import in_place
from resilient_launch.checkpoint.store.board import LocalBoard
from resilient_launch.checkpoint.store.errors import (
    DamagedError,
    FencedError,
    ForeignError,
    UnreadableError,
    read_error,
)
from resilient_launch.checkpoint.store.files import FileReader
from resilient_launch.checkpoint.store.litter import quarantine
from resilient_launch.checkpoint.store.manifest import MANIFEST_NAME, Manifest, parse_manifest
from resilient_launch.checkpoint.store.rounds import Round, error_from_json, error_to_json
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId

_MANIFEST_LIMIT_BYTES = 1 << 30
_MOST_OPEN_FILES = 64
"""A checkpoint of a thousand ranks has more files than a process may have open."""
PASSED_OVER = "restart after restart from it failed without getting anywhere"
T = TypeVar("T")


class Standing(StrEnum):
    """What the loader made of one published checkpoint; the last four only for who looks on from outside."""

    CHOSEN = "chosen"
    DAMAGED = "damaged"
    FENCED = "fenced"
    PASSED_OVER = "passed over"
    FOREIGN = "foreign"
    UNREADABLE = "unreadable"
    OLDER = "older"
    UNSUPPORTED = "unsupported"
    QUARANTINED = "quarantined"
    UNFINISHED = "unfinished"


_STANDING_OF = {
    DamagedError: Standing.DAMAGED,
    UnreadableError: Standing.UNREADABLE,
    ForeignError: Standing.FOREIGN,
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One checkpoint's standing, why, and the name it was quarantined under, if it was."""

    name: str
    standing: Standing
    why: str = ""
    quarantined_as: str | None = None


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """Which checkpoints an attempt may use: its own, and those that its claim lists as ``allowed`` (None: all older).

    No ``attempt`` is for looking on from outside: nothing is too new then.

    What an older attempt publishes after that list was made has lost the race and is put aside. ``passed_over`` are
    names, or names with reasons, of sound checkpoints that are nothing to go on from.
    """

    run_id: str = ""
    attempt: int | None = None
    allowed: frozenset[str] | None = None
    passed_over: Collection[str] = frozenset()

    def why_passed_over(self, name: str) -> str:
        """The reason, where ``passed_over`` is a mapping that gives one; else that nothing came of it."""
        return str(self.passed_over[name]) if isinstance(self.passed_over, Mapping) else PASSED_OVER

    def admits(self, ident: CheckpointId) -> bool:
        """Raises FencedError for a checkpoint of a newer attempt: then it is this one that has been replaced."""
        if self.attempt is None:
            return self.allowed is None or str(ident) in self.allowed
        if ident.attempt > self.attempt:
            raise FencedError(
                f"attempt {self.attempt} has been replaced",
                why=f"checkpoint {ident} was published by a newer one",
                hint="let this attempt end",
            )
        return ident.attempt == self.attempt or self.allowed is None or str(ident) in self.allowed


class OpenCheckpoint:
    """A published checkpoint whose manifest is right; its files verify as they are read."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self._readers: dict[str, FileReader] = {}
        self._open_names: deque[str] = deque()

    def reader(self, name: str) -> FileReader:
        """The reader of one file, which remembers what it has verified; closed with this object."""
        if name not in self._readers:
            self._readers[name] = FileReader(self.path, self.manifest.file(name), self.manifest.algorithm)
        if name not in self._open_names:
            self._open_names.append(name)
            if len(self._open_names) > _MOST_OPEN_FILES:
                self._readers[self._open_names.popleft()].close()
        return self._readers[name]

    def read(self, name: str) -> bytes:
        """One whole file, verified."""
        return self.reader(name).read(0, self.manifest.file(name).size)

    def verify_share(self, rank: int = 0, world_size: int = 1) -> None:
        """Verify what has not been read yet of this rank's share of the files: every ``world_size``-th one."""
        for entry in self.manifest.files[rank::world_size]:
            self.reader(entry.name).verify_rest()

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def __enter__(self) -> OpenCheckpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, kw_only=True)
class Choice(Generic[T]):
    """The outcome: ``manifest`` and ``value`` of the chosen checkpoint, or None of both; verdicts newest first."""

    manifest: Manifest | None
    value: T | None
    verdicts: tuple[Verdict, ...]


def published(directory: Path) -> list[CheckpointId]:
    """Names that a commit has published, newest of the lineage first. A missing directory holds none."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        found = [ident for name in names if (ident := CheckpointId.parse(name)) is not None]
        return sorted((ident for ident in found if in_place.is_published(directory / str(ident))), reverse=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise read_error(error, directory) from error


def open_checkpoint(path: Path, run_id: str = "") -> OpenCheckpoint:
    """Open one published checkpoint by its directory.

    Raises DamagedError, UnreadableError, UnsupportedError, and ForeignError when ``run_id`` is another's.
    """
    manifest_path = path / MANIFEST_NAME
    try:
        fd = os.open(manifest_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_size > _MANIFEST_LIMIT_BYTES:
                raise DamagedError("manifest is not a regular file of sane size", where=str(manifest_path))
            data = file.read()
    except OSError as error:
        raise read_error(error, manifest_path) from error
    manifest = parse_manifest(data, manifest_path)
    if manifest.name != path.name.partition(".corrupt")[0].partition(".fenced")[0]:
        raise DamagedError("manifest is that of another checkpoint", why=manifest.name, where=str(manifest_path))
    if run_id and manifest.facts.run_id and manifest.facts.run_id != run_id:
        raise ForeignError(
            f"checkpoint of another run, {manifest.facts.run_id}", where=str(path), why=f"this run is {run_id}"
        )
    return OpenCheckpoint(path, manifest)


def read_verified(path: Path, name: str) -> bytes:
    """One file of a published checkpoint, verified."""
    with open_checkpoint(path) as checkpoint:
        return checkpoint.read(name)


def choose(directory: Path, lineage: Lineage | None = None) -> Choice[None]:
    """Choose alone: the newest admitted checkpoint all of whose files verify. Damaged ones are quarantined."""
    alone = Round(LocalBoard(), "choose", rank=0, world_size=1, deadline_s=0.0)
    return load(directory, lineage or Lineage(), alone, lambda _: None)


def load(directory: Path, lineage: Lineage, round_: Round, read: Callable[[OpenCheckpoint], T]) -> Choice[T]:
    """Choose together with the round's other ranks; the same call on every rank.

    For each candidate, newest first, every rank calls ``read`` and verifies its share of the rest; damage seen by any
    rank sends the candidate to quarantine (renamed by rank 0 alone) and all of them to the next. An error of ``read``
    that is no damage, such as a state of another shape, is raised on every rank and condemns nothing. So is the end of
    the list where a checkpoint could not be read: a fresh start is for a run that has nothing left.
    """
    try:
        return _load(directory, lineage, round_, read)
    except BaseException as error:
        round_.fail(error)
        raise


def _load(directory: Path, lineage: Lineage, round_: Round, read: Callable[[OpenCheckpoint], T]) -> Choice[T]:
    verdicts: list[Verdict] = []
    candidates = _candidates(directory, lineage, verdicts) if round_.is_coordinator else []
    for number in range(1 << 30):
        offer = round_.share(f"offer{number}", str(candidates[number]) if number < len(candidates) else None)
        if offer is None:
            final = round_.share("verdicts", [_verdict_to_json(verdict) for verdict in verdicts])
            return _nothing(directory, _verdicts_from_json(final))
        manifest, value, error = _try(directory / offer, lineage, round_, read)
        word = {
            "uuid": manifest.uuid if manifest else None,
            "error": error_to_json(error, round_.rank) if error else None,
        }
        words = round_.gather(f"word{number}", word)
        outcome = round_.share(f"outcome{number}", _judge(directory / offer, words, verdicts) if words else None)
        if outcome["chosen"]:
            final = round_.share("verdicts", [_verdict_to_json(verdict) for verdict in verdicts])
            return Choice(manifest=manifest, value=value, verdicts=_verdicts_from_json(final))
        if outcome["refused"] is not None:
            raise error if error is not None and not _condemns(error) else error_from_json(outcome["refused"])
    raise AssertionError("unreachable")


def _nothing(directory: Path, verdicts: tuple[Verdict, ...]) -> Choice[T]:
    """A fresh start, unless a sound checkpoint may lie there that this attempt can't look into."""
    closed = [verdict for verdict in verdicts if verdict.standing in (Standing.UNREADABLE, Standing.FOREIGN)]
    if closed:
        raise CheckpointError(
            "none of the checkpoints can be used",
            where=str(directory),
            why="; ".join(f"{verdict.name} is {verdict.standing}: {verdict.why}" for verdict in closed),
            hint="repair the access to them, or move them away to start afresh",
        )
    return Choice(manifest=None, value=None, verdicts=verdicts)


def _candidates(directory: Path, lineage: Lineage, verdicts: list[Verdict]) -> list[CheckpointId]:
    admitted = []
    for ident in published(directory):
        if str(ident) in lineage.passed_over:
            why = lineage.why_passed_over(str(ident))
            verdicts.append(Verdict(name=str(ident), standing=Standing.PASSED_OVER, why=why))
            continue
        if lineage.admits(ident):
            admitted.append(ident)
            continue
        why = f"published by attempt {ident.attempt} after attempt {lineage.attempt} had been claimed"
        renamed = quarantine(directory / str(ident), "fenced")
        verdicts.append(Verdict(name=str(ident), standing=Standing.FENCED, why=why, quarantined_as=renamed))
    return admitted


def _try(
    path: Path, lineage: Lineage, round_: Round, read: Callable[[OpenCheckpoint], T]
) -> tuple[Manifest | None, T | None, CheckpointError | None]:
    try:
        # Listing the parent makes a network file system forget that it once had no such name.
        if not round_.is_coordinator and CheckpointId.parse(path.name) not in published(path.parent):
            raise UnreadableError("checkpoint is not visible on this node", where=str(path))
        with open_checkpoint(path, lineage.run_id) as checkpoint:
            value = read(checkpoint)
            checkpoint.verify_share(round_.rank, round_.world_size)
            return checkpoint.manifest, value, None
    except CheckpointError as error:
        return None, None, error


def _judge(path: Path, words: list[dict[str, object]], verdicts: list[Verdict]) -> dict[str, object]:
    errors = [error_from_json(word["error"]) for word in words if isinstance(word["error"], dict)]
    condemning = [error for error in errors if _condemns(error)]
    if condemning:
        worst = min(condemning, key=lambda error: not isinstance(error, DamagedError))
        standing = _STANDING_OF[type(worst)]
        renamed = quarantine(path, "corrupt") if standing is Standing.DAMAGED else None
        verdicts.append(Verdict(name=path.name, standing=standing, why=str(worst), quarantined_as=renamed))
        return {"chosen": False, "refused": None}
    if errors:
        refused = next(word["error"] for word in words if word["error"] is not None)
        return {"chosen": False, "refused": refused}
    if len({word["uuid"] for word in words}) > 1:
        raise CheckpointError(
            "the ranks see different checkpoints under one name",
            where=str(path),
            hint="the directory was replaced, or a node's view of the file system is stale",
        )
    verdicts.append(Verdict(name=path.name, standing=Standing.CHOSEN))
    return {"chosen": True, "refused": None}


def _condemns(error: CheckpointError) -> bool:
    return type(error) in _STANDING_OF


def _verdict_to_json(verdict: Verdict) -> dict[str, str | None]:
    return {
        "name": verdict.name,
        "standing": verdict.standing.value,
        "why": verdict.why,
        "quarantined_as": verdict.quarantined_as,
    }


def _verdicts_from_json(records: list[dict[str, str]]) -> tuple[Verdict, ...]:
    return tuple(
        Verdict(
            name=record["name"],
            standing=Standing(record["standing"]),
            why=record["why"],
            quarantined_as=record["quarantined_as"],
        )
        for record in records
    )
