"""What lies in which arena of a rank: labels beside the writer's socket, which the next worker group reads.

A label is there while its snapshot is whole. It is taken away before an arena is overwritten, and put back, with the
digests of what was copied, by whoever hashed it: the writer, or the training process for what is not written. So a
process that is killed at any moment leaves whole snapshots and no labels of torn ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilient_launch.checkpoint.store import Facts, FileEntry, Manifest
from resilient_launch.checkpoint.store.hashing import combine, hash_hex
from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.snapshots import Mark

NUM_SLOTS = 2
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Label:
    """A whole snapshot in arena ``slot``. ``job`` is what the writer was, or would have been, told of it."""

    slot: int
    job: Mapping[str, Any]
    chunks: tuple[str, ...]

    @property
    def mark(self) -> Mark:
        return Mark(
            CheckpointId(attempt=self.job["attempt"], restart=self.job["restart"], step=self.job["step"]),
            self.job["number"],
        )

    @property
    def facts(self) -> Facts:
        return Facts(**self.job["facts"])

    @property
    def entry(self) -> FileEntry:
        """The arena's content as the file that it is, or would become."""
        return FileEntry(
            name=self.job["shard"],
            size=self.job["num_bytes"],
            digest=combine(self.job["algorithm"], self.chunks),
            chunk_bytes=self.job["chunk_bytes"],
            chunks=self.chunks,
        )

    def manifest(self, files: Sequence[FileEntry]) -> Manifest:
        """The description of the whole snapshot, of all ranks' ``files``."""
        return Manifest(
            id=self.mark.id,
            uuid="",
            saved_at=self.job["captured_at"],
            facts=self.facts,
            files=tuple(files),
            algorithm=self.job["algorithm"],
        )


class Shelf:
    """The labels of one rank, beside the socket at ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take_away(self, slot: int) -> None:
        """Before the arena is overwritten. Raises OSError."""
        self._file(slot).unlink(missing_ok=True)

    def put(self, slot: int, job: Mapping[str, Any], chunks: Sequence[str]) -> None:
        """Say that the arena holds the whole of what ``job`` describes. Raises OSError."""
        text = json.dumps({"label": _VERSION, "job": job, "chunks": list(chunks)}, separators=(",", ":"))
        temporary = self._path.with_name(f"{self._file(slot).name}.new")
        temporary.write_text(text)
        temporary.replace(self._file(slot))

    def labels(self) -> list[Label]:
        """Every label that is there."""
        found = []
        for slot in range(NUM_SLOTS):
            try:
                record = json.loads(self._file(slot).read_bytes())
                if record["label"] == _VERSION:
                    found.append(Label(slot=slot, job=record["job"], chunks=tuple(record["chunks"])))
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return found

    def _file(self, slot: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{slot}.label")


def hash_image(image: memoryview, num_bytes: int, *, algorithm: str, chunk_bytes: int) -> tuple[str, ...]:
    """The digests of the first ``num_bytes`` of an arena, as its file's manifest entry has them."""
    return tuple(
        hash_hex(algorithm, image[start : min(start + chunk_bytes, num_bytes)])
        for start in range(0, num_bytes, chunk_bytes)
    )
