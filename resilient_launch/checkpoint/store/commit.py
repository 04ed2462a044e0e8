"""Publishing a checkpoint: everything durable first, one rename that all of it appears with, nothing otherwise.

rank 0 makes a temporary directory and shares its name
every rank says what its part is, and rank 0 writes the files that tell where everything will be
every rank writes and fsyncs its files there, then reports them
rank 0 compares the directory with the reports, writes MANIFEST.json, fsyncs the directory
one rename to a name that never existed, fsync of the parent, LATEST as a hint
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid as uuids
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilient_launch.checkpoint.store import in_place
from resilient_launch.checkpoint.store.board import LocalBoard
from resilient_launch.checkpoint.store.errors import FencedError, write_error
from resilient_launch.checkpoint.store.files import DEFAULT_CHUNK_BYTES, FileWriter
from resilient_launch.checkpoint.store.hashing import DEFAULT_ALGORITHM, Buffer
from resilient_launch.checkpoint.store.litter import discard, fenced_name, temporary_name
from resilient_launch.checkpoint.store.manifest import MANIFEST_NAME, Facts, FileEntry, Manifest, parse_manifest
from resilient_launch.checkpoint.store.rounds import Round
from resilient_launch.core.durable import fsync_dir, replace_file, write_file
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId

LATEST_NAME = "LATEST"
_OWN_NAMES = {in_place.BEGUN_NAME, in_place.REVOKED_NAME}
_COMMIT_SHARE, _LEAST_COMMIT_S = 0.2, 5.0
"""How much longer than rank 0 the other ranks wait, for its checks, manifest and rename."""


@dataclass(frozen=True, kw_only=True)
class Digesting:
    """How files are hashed."""

    algorithm: str = DEFAULT_ALGORITHM
    chunk_bytes: int = DEFAULT_CHUNK_BYTES

    def writer(self, directory: Path, name: str) -> FileWriter:
        """A new file hashed in this way."""
        return FileWriter(directory, name, algorithm=self.algorithm, chunk_bytes=self.chunk_bytes)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A checkpoint that is durable and visible under its name."""

    id: CheckpointId
    uuid: str
    num_bytes: int


def publish(
    directory: Path,
    ident: CheckpointId,
    round_: Round,
    *,
    write: Callable[[Path], Sequence[FileEntry]],
    facts: Facts,
    part: Any = None,
    merge: Callable[[list[Any]], Mapping[str, bytes]] = lambda parts: {},
    digesting: Digesting | None = None,
    announce: Callable[[Published], None] = lambda published: None,
    without_rename: bool = False,
) -> Published:
    """Write one checkpoint together with the round's other ranks; the same call on every rank.

    ``write`` puts this rank's files into the directory it is given. ``merge`` turns all ranks' ``part``, JSON, into
    small files that rank 0 writes before its own, so that little is left to do after the last byte. Raises
    CheckpointError on every rank when any rank failed: then nothing is published, the space is given back and older
    checkpoints are untouched. Raises FencedError when a newer attempt took over.
    ``announce`` is called as soon as it is durable, before what no save depends on is brought up to date.
    ``without_rename``: everything is written under the final name, and the manifest, put last, is what publishes.
    """
    digesting = digesting or Digesting()
    if not round_.is_coordinator:
        plan = round_.share("plan")
        round_.extend(max(_LEAST_COMMIT_S, _COMMIT_SHARE * round_.remaining_s))
        round_.gather("part", part)
        with round_.failing():
            written = _write(directory / plan["directory"], write, is_coordinator=False)
        round_.gather("report", [entry.to_json() for entry in written])
        outcome = round_.share("outcome")
        published = Published(id=ident, uuid=outcome["uuid"], num_bytes=outcome["num_bytes"])
        announce(published)
        return published

    with round_.failing():
        temporary = _begin(directory, ident, without_rename=without_rename)
    try:
        round_.share("plan", {"directory": temporary.name})
        parts = round_.gather("part", part) or []
        with round_.failing():
            extra = merge(parts)
            written = _write(
                temporary,
                lambda path: [*_write_buffers(path, extra, digesting), *write(path)],
                is_coordinator=True,
            )
        reports = round_.gather("report", [entry.to_json() for entry in written]) or []
        with round_.failing():
            files = [FileEntry.from_json(record) for report in reports for record in report]
            _check_files(temporary, files)
            manifest = Manifest(
                id=ident,
                uuid=str(uuids.uuid4()),
                saved_at=time.time(),
                facts=facts,
                files=tuple(sorted(files, key=lambda entry: entry.name)),
                algorithm=digesting.algorithm,
            )
            commit_directory(temporary, directory / str(ident), manifest)
    except BaseException:
        discard(temporary)
        raise
    published = Published(id=ident, uuid=manifest.uuid, num_bytes=manifest.num_bytes)
    announce(published)
    round_.share("outcome", {"uuid": manifest.uuid, "num_bytes": manifest.num_bytes})
    # The pointer is a convenience for people; a checkpoint that is published stays published without it.
    with contextlib.suppress(OSError):
        if not without_rename:
            replace_file(directory / LATEST_NAME, f"{ident}\n".encode())
    return published


def write_buffers(
    directory: Path,
    ident: CheckpointId,
    buffers: Mapping[str, Buffer],
    facts: Facts | None = None,
    *,
    digesting: Digesting | None = None,
    without_rename: bool = False,
) -> Published:
    """Publish named buffers as the files of one checkpoint, from a single process and without torch."""
    digesting = digesting or Digesting()

    alone = Round(LocalBoard(), str(ident), rank=0, world_size=1, deadline_s=0.0)
    return publish(
        directory,
        ident,
        alone,
        write=lambda path: _write_buffers(path, buffers, digesting),
        facts=facts or Facts(),
        digesting=digesting,
        without_rename=without_rename,
    )


def _begin(directory: Path, ident: CheckpointId, *, without_rename: bool) -> Path:
    final = directory / str(ident)
    _refuse_taken(final)
    temporary = final if without_rename else directory / temporary_name(ident)
    try:
        if without_rename:
            in_place.begin(final)
        else:
            temporary.mkdir(0o755)
    except OSError as error:
        raise write_error(error, "checkpoint directory can't be created", temporary) from error
    return temporary


def _write(
    temporary: Path, write: Callable[[Path], Sequence[FileEntry]], *, is_coordinator: bool
) -> Sequence[FileEntry]:
    try:
        written = write(temporary)
        if not is_coordinator:
            # The names that this node created must not depend on the coordinator's client to become durable.
            fsync_dir(temporary)
        return written
    except (CheckpointError, OSError) as error:
        if _is_gone(temporary):
            raise _gone(temporary) from error
        if isinstance(error, OSError):
            raise write_error(error, "checkpoint files can't be written", temporary) from error
        raise


def _is_gone(temporary: Path) -> bool:
    """Whether the directory was taken away; a storage that does not say has not lost it."""
    try:
        temporary.lstat()
        return in_place.is_revoked(temporary)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _gone(temporary: Path) -> CheckpointError:
    return FencedError(
        "the checkpoint was not published",
        where=str(temporary),
        why="its temporary directory was taken away: a newer attempt of the run has started"
        if os.path.lexists(temporary.parent / fenced_name(temporary.name)) or os.path.lexists(temporary)
        else "its temporary directory is gone: a newer attempt of the run has started, or somebody removed it",
        hint="let this attempt end; the newer one resumes from the last published checkpoint",
    )


def _check_files(temporary: Path, entries: list[FileEntry]) -> None:
    """Exactly the reported files, whole, are in the directory: no stale one, none in a sibling directory."""
    names = [entry.name for entry in entries]
    if len(set(names)) != len(names):
        raise CheckpointError("two ranks wrote the same file", where=str(temporary), why=f"files are {sorted(names)}")
    try:
        present = {path.name for path in temporary.iterdir() if not path.name.startswith(".nfs")} - _OWN_NAMES
        for entry in entries:
            # Opening asks a network file system's server, where listing may answer from a cache.
            with (temporary / entry.name).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
            if size != entry.size:
                raise CheckpointError(
                    "a rank's file has another size than it reported",
                    where=str(temporary / entry.name),
                    why=f"{size} instead of {entry.size} bytes",
                )
    except OSError as error:
        if _is_gone(temporary):
            raise _gone(temporary) from error
        raise write_error(error, "a rank's file is not in the checkpoint's directory", temporary) from error
    if strangers := present - set(names):
        raise CheckpointError(
            "files in the checkpoint's directory that no rank reported", where=str(temporary), why=f"{strangers}"
        )


def _write_buffers(directory: Path, buffers: Mapping[str, Buffer], digesting: Digesting) -> list[FileEntry]:
    entries = []
    for name, data in buffers.items():
        with digesting.writer(directory, name) as file:
            file.write(data)
            entries.append(file.finish())
    return entries


def commit_directory(temporary: Path, final: Path, manifest: Manifest) -> None:
    """Publish a directory whose files are durable: its manifest, then one rename to a name that never existed.

    One that has its final name already is published by the manifest alone.
    """
    try:
        write_file(temporary / MANIFEST_NAME, manifest.render())
        fsync_dir(temporary)
    except OSError as error:
        if _is_gone(temporary):
            raise _gone(temporary) from error
        raise write_error(error, "checkpoint manifest can't be written", temporary) from error
    if temporary == final:
        # A newer attempt revokes what has no manifest, and then lists what has one: it has seen this one or revoked it.
        if _is_gone(final):
            raise _gone(final)
        return
    _refuse_taken(final)
    try:
        temporary.rename(final)
    except OSError as error:
        # NFS repeats a rename whose answer was lost and then reports ENOENT for one that succeeded.
        if _uuid_of(final) != manifest.uuid:
            if isinstance(error, FileNotFoundError):
                raise _gone(temporary) from error
            raise write_error(error, "checkpoint can't be published", final) from error
    try:
        fsync_dir(final.parent)
    except OSError as error:
        # Visible but perhaps not durable: nobody may build on it, least of all the retention that follows.
        discard(final)
        raise write_error(error, "checkpoint's name can't be made durable", final) from error


def _refuse_taken(final: Path) -> None:
    if os.path.lexists(final):
        raise CheckpointError(
            f"checkpoint {final.name} exists already",
            where=str(final.parent),
            why="a checkpoint's name is never used twice",
            hint="each start of the training needs an attempt number of its own",
        )


def _uuid_of(path: Path) -> str | None:
    try:
        return parse_manifest((path / MANIFEST_NAME).read_bytes(), path).uuid
    except (OSError, CheckpointError):
        return None
