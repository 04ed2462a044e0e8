"""Format 1 of a checkpoint: what MANIFEST.json says, written by one function and believed only where it verifies.

A checkpoint is a directory of plain files and this manifest, which is written last. The manifest lists every file with
its size and digest; its own last field is the digest of everything before it, and a manifest is accepted only when
writing it again gives the very same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilient_launch.checkpoint.store.errors import DamagedError, UnsupportedError
from resilient_launch.checkpoint.store.hashing import ALGORITHMS, DEFAULT_ALGORITHM, combine, hash_hex
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId

FORMAT_MAJOR = 1
FORMAT_MINOR = 0
MANIFEST_NAME = "MANIFEST.json"
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_HEX = re.compile(r"[0-9a-f]{32,128}")


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint: ``chunks`` are the digests of its ``chunk_bytes`` long pieces, ``digest`` is over them.

    Chunks let a partial read verify just what it reads, and let several threads hash one file.
    """

    name: str
    size: int
    digest: str
    chunk_bytes: int
    chunks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "size": self.size,
            "digest": self.digest,
            "chunk_bytes": self.chunk_bytes,
            "chunks": list(self.chunks),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> FileEntry:
        """Raises ValueError, KeyError or TypeError for anything that no writer of ours would have written."""
        entry = cls(
            name=check_file_name(_typed(record["name"], str)),
            size=_typed(record["size"], int),
            digest=_typed(record["digest"], str),
            chunk_bytes=_typed(record["chunk_bytes"], int),
            chunks=tuple(_typed(chunk, str) for chunk in _typed(record["chunks"], list)),
        )
        if entry.size < 0 or entry.chunk_bytes < 1 or len(entry.chunks) != -(-entry.size // entry.chunk_bytes):
            raise ValueError(f"sizes of {entry.name} don't fit together")
        if not all(_HEX.fullmatch(digest) for digest in (entry.digest, *entry.chunks)):
            raise ValueError(f"{entry.name} has a digest that is none")
        return entry


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a saver knows about a checkpoint beyond its bytes. ``training_s`` is seconds of training in all attempts.

    ``parent`` names the checkpoint that this one's training went on from or that was saved before it. ``metadata`` is
    the user's: any JSON value.
    """

    run_id: str = ""
    parent: str | None = None
    world_size: int = 1
    layout: Mapping[str, Any] = field(default_factory=lambda: {"kind": "replicated"})
    code_version: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    training_s: float = 0.0
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A checkpoint's whole description. ``saved_at`` is wall-clock seconds since the epoch; it orders nothing."""

    id: CheckpointId
    uuid: str
    saved_at: float
    facts: Facts
    files: tuple[FileEntry, ...]
    algorithm: str = DEFAULT_ALGORITHM

    @property
    def name(self) -> str:
        return str(self.id)

    @property
    def num_bytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(entry.size for entry in self.files)

    def file(self, name: str) -> FileEntry:
        """The entry of one file; DamagedError when the checkpoint has none of that name."""
        for entry in self.files:
            if entry.name == name:
                return entry
        raise DamagedError(f"checkpoint {self.name} has no file {name}")

    def render(self) -> bytes:
        """The manifest as it is written. Raises CheckpointError when ``metadata`` is not JSON."""
        facts = self.facts
        record = {
            "format": {"name": "rlaunch-checkpoint", "major": FORMAT_MAJOR, "minor": FORMAT_MINOR},
            "name": self.name,
            "uuid": self.uuid,
            "run_id": facts.run_id,
            "step": self.id.step,
            "attempt": self.id.attempt,
            "restart": self.id.restart,
            "parent": facts.parent,
            "world_size": facts.world_size,
            "layout": dict(facts.layout),
            "code_version": facts.code_version,
            "versions": dict(facts.versions),
            "reason": facts.reason,
            "saved_at": self.saved_at,
            "training_s": facts.training_s,
            "num_bytes": self.num_bytes,
            "digest_algorithm": self.algorithm,
            "files": [entry.to_json() for entry in self.files],
            "metadata": dict(facts.metadata),
        }
        try:
            return seal(record)
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                "the checkpoint's metadata is not JSON", why=str(error), hint="give strings, finite numbers, lists"
            ) from error


def parse_manifest(data: bytes, path: Path) -> Manifest:
    """Read a manifest strictly. Raises DamagedError, or UnsupportedError for a newer format."""
    try:
        record = _typed(json.loads(data), dict)
        major = _typed(record["format"], dict)["major"]
        body = {key: value for key, value in record.items() if key != "manifest_digest"}
        if seal(body) != data:
            raise ValueError("its own digest does not match")
        if type(major) is int and major > FORMAT_MAJOR:
            raise _too_new(f"checkpoint format {major}", f"this version reads format {FORMAT_MAJOR}", path)
        if major != FORMAT_MAJOR:
            raise ValueError("no format number")
        if (algorithm := _typed(record["digest_algorithm"], str)) not in ALGORITHMS:
            raise _too_new(f"digest algorithm {algorithm[:40]!r}", f"this version knows {', '.join(ALGORITHMS)}", path)
        return _from_record(record)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise DamagedError("manifest is damaged", why=f"{error}", where=str(path)) from error


def _too_new(what: str, why: str, path: Path) -> UnsupportedError:
    return UnsupportedError(what, where=str(path), why=why, hint="install the version that wrote it, or a newer one")


def check_file_name(name: str) -> str:
    """Return a name that stays inside the checkpoint's directory; raise ValueError for any other."""
    if not _FILE_NAME.fullmatch(name) or name == MANIFEST_NAME:
        raise ValueError(f"file name {name!r} is not allowed in a checkpoint")
    return name


def _from_record(record: Mapping[str, Any]) -> Manifest:
    ident = CheckpointId(
        attempt=_typed(record["attempt"], int), restart=_typed(record["restart"], int), step=_typed(record["step"], int)
    )
    files = tuple(FileEntry.from_json(entry) for entry in _typed(record["files"], list))
    algorithm = _typed(record["digest_algorithm"], str)
    if str(ident) != record["name"]:
        raise ValueError("its name and its step, attempt and restart disagree")
    if len({entry.name for entry in files}) != len(files):
        raise ValueError("it lists a file twice")
    if any(combine(algorithm, entry.chunks) != entry.digest for entry in files):
        raise ValueError("a file's digest is not that of its chunks")
    return Manifest(
        id=ident,
        uuid=_typed(record["uuid"], str),
        saved_at=float(record["saved_at"]),
        files=files,
        algorithm=algorithm,
        facts=Facts(
            run_id=_typed(record["run_id"], str),
            parent=None if record["parent"] is None else _typed(record["parent"], str),
            world_size=_typed(record["world_size"], int),
            layout=_typed(record["layout"], dict),
            code_version=_typed(record["code_version"], str),
            versions=_typed(record["versions"], dict),
            reason=_typed(record["reason"], str),
            training_s=float(record["training_s"]),
            metadata=_typed(record["metadata"], dict),
        ),
    )


def seal(body: Mapping[str, Any]) -> bytes:
    """The one rendering of a manifest, its digest last. Later formats keep it, so that damage never looks like one."""
    text = json.dumps(body, ensure_ascii=True, allow_nan=False, indent=1)
    sealed = {**body, "manifest_digest": hash_hex(DEFAULT_ALGORITHM, text.encode())}
    return json.dumps(sealed, ensure_ascii=True, allow_nan=False, indent=1).encode() + b"\n"


def _typed(value: Any, kind: type[Any]) -> Any:
    # bool is an int to isinstance; a count that reads `true` is damage.
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
