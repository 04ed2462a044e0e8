"""The states that campaigns save, byte for byte, and a loader's answer compared with them."""

from __future__ import annotations

import json
import mmap
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilient_launch.checkpoint import store
from resilient_launch.checkpoint.store import Facts, FileEntry, Lineage, LocalBoard, Round
from resilient_launch.checkpoint.store.direct import BLOCK_BYTES, write_image
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId
from tests.faults.campaigns.tally import hold

INDEX = "index.json"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How a state lies in files: ``files`` files of ``num_bytes`` bytes from each of ``ranks`` ranks, and an index.

    An ``is_image`` is written as the background writer does it: past the page cache, from a thread. ``in_place``: as
    on storage without an atomic rename.
    """

    ranks: int = 1
    files: int = 1
    num_bytes: int = 3000
    chunk_bytes: int = 1 << 16
    is_image: bool = False
    in_place: bool = False

    def __str__(self) -> str:
        kind = f"{'image-' if self.is_image else ''}{'in-place-' if self.in_place else ''}"
        return f"{kind}{self.ranks}x{self.files}x{self.num_bytes}/{self.chunk_bytes}"

    def share(self, ident: CheckpointId, rank: int) -> dict[str, bytes]:
        """One rank's files."""
        return {
            f"rank{rank}-{number}.bin": random.Random(f"{ident}/{rank}/{number}").randbytes(self.num_bytes)
            for number in range(self.files)
        }

    def content(self, ident: CheckpointId) -> dict[str, bytes]:
        """Every file of a checkpoint but its manifest."""
        found = {INDEX: json.dumps([f"{ident} of rank {rank}" for rank in range(self.ranks)]).encode()}
        for rank in range(self.ranks):
            found |= self.share(ident, rank)
        return found


class _LeftError(BaseException):
    """Ends a rank that has reported: it has nothing to do but to wait."""


class InlineBoard(LocalBoard):
    """A board on which a rank acts when rank 0 asks for its part: all ranks in one thread, one call after another."""

    def __init__(self, ranks: dict[str, Any]) -> None:
        super().__init__()
        self._ranks = ranks
        self._acting = False

    def read(self, key: str, timeout_s: float) -> bytes:
        act = self._ranks.pop(key, None)
        if act is not None:
            self._acting = True
            try:
                act()
            except (_LeftError, CheckpointError):
                pass
            finally:
                self._acting = False
        elif self._acting and key.endswith("/outcome"):
            raise _LeftError
        return super().read(key, 0.0)


def save(directory: Path, ident: CheckpointId, shape: Shape) -> None:
    """Save the state of ``ident`` with all ranks of ``shape``, as their processes would, in this one thread."""

    def publish(board: LocalBoard, rank: int) -> None:
        def write(temporary: Path) -> list[FileEntry]:
            entries = []
            for name, data in shape.share(ident, rank).items():
                if shape.is_image:
                    entries.append(_write_image(temporary, name, data, digesting))
                    continue
                with digesting.writer(temporary, name) as file:
                    file.write(data)
                    entries.append(file.finish())
            return entries

        round_ = Round(board, str(ident), rank=rank, world_size=shape.ranks, deadline_s=1.0)
        facts = Facts(world_size=shape.ranks)
        merge = lambda parts: {INDEX: json.dumps(parts).encode()}  # noqa: E731
        store.publish(
            directory,
            ident,
            round_,
            part=f"{ident} of rank {rank}",
            merge=merge,
            write=write,
            facts=facts,
            digesting=digesting,
            without_rename=shape.in_place,
        )

    digesting = store.Digesting(chunk_bytes=shape.chunk_bytes)
    others = {f"{ident}/part/{rank}": (lambda rank=rank: publish(board, rank)) for rank in range(1, shape.ranks)}
    board: LocalBoard = InlineBoard(others)
    publish(board, 0)


def _write_image(directory: Path, name: str, data: bytes, digesting: store.Digesting) -> store.FileEntry:
    image = mmap.mmap(-1, -(-len(data) // BLOCK_BYTES) * BLOCK_BYTES)
    image[: len(data)] = data
    return write_image(
        directory,
        name,
        memoryview(image),
        len(data),
        algorithm=digesting.algorithm,
        chunk_bytes=digesting.chunk_bytes,
        num_threads=1,
    )


def loaded(directory: Path, lineage: Lineage | None = None) -> tuple[CheckpointId | None, dict[str, bytes], list[str]]:
    """What a start would go on from: the checkpoint, its files as the loader gives them, and the verdicts on others."""

    def read(checkpoint: store.OpenCheckpoint) -> dict[str, bytes]:
        return {entry.name: checkpoint.read(entry.name) for entry in checkpoint.manifest.files}

    alone = Round(LocalBoard(), "load", rank=0, world_size=1, deadline_s=1.0)
    choice = store.load(directory, lineage or Lineage(), alone, read)
    others = [f"{each.name} is {each.standing}: {each.why}" for each in choice.verdicts if each.standing != "chosen"]
    return (choice.manifest.id if choice.manifest else None), choice.value or {}, others


def must_load(
    directory: Path,
    expected: Iterable[CheckpointId | None],
    shape: Shape,
    lineage: Lineage | None = None,
    *,
    may_condemn: bool = False,
) -> CheckpointId | None:
    """The loader returns exactly one of the ``expected`` states, and unless ``may_condemn`` finds nothing broken."""
    seen = tree(directory)
    found, content, others = loaded(directory, lineage)
    hold(found in set(expected), f"loaded {found}", seen, others)
    hold(may_condemn or not others, "a checkpoint was published that is not whole", others, seen)
    if found is not None:
        hold(content == shape.content(found), f"{found} does not have the content that was saved", seen)
    return found


def tree(directory: Path) -> str:
    """Names and sizes below a directory, for an error's text."""
    found = sorted(path for path in directory.rglob("*"))
    return " ".join(
        f"{path.relative_to(directory)}({path.stat().st_size if path.is_file() else 'd'})" for path in found
    )
