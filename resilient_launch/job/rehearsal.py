"""What a rehearsal tells the workers of a run to do, and what it hears from them: one directory of small files."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from resilient_launch.core import durable

MishapKind = Literal[
    "kill", "freeze", "gate", "kill-in-save", "stop-in-save", "refuse-save", "slow-save", "kill-in-own"
]


@dataclass(frozen=True, kw_only=True)
class Mishap:
    """Something that happens to a worker, once, at the first boundary with ``step`` completed steps or more.

    kill, freeze    SIGKILL or SIGSTOP to itself
    gate            it waits there until the rehearsal, or a notice, lets it go on
    kill-in-save    SIGKILL in the save of exactly that step, between two of its files; stop-in-save: SIGSTOP
    refuse-save     the save of exactly that step finds no space left
    slow-save       the save that a notice asks for does not end
    kill-in-own     SIGKILL when half of the file of a ``torch.save`` is written

    ``rank`` is the worker's; None means every one. ``attempt`` is that of the life meant; None means any.
    """

    kind: MishapKind
    step: int
    rank: int | None = 0
    attempt: int | None = None


@dataclass(frozen=True, kw_only=True)
class Instructions:
    """The whole of it. ``stage`` is the directory for words in both directions, ``steps`` where the run ends.

    ``seed_offset`` is added to the run's seeds, ``pace_s`` is slept in every step. ``drops`` are pieces of the state:
    worker group 1 leaves the first out when it restores, group 2 the second, and so on; each of them is killed
    ``drop_steps`` steps later and saves nothing.
    """

    stage: Path
    steps: int
    seed_offset: int = 0
    pace_s: float = 0.0
    mishaps: tuple[Mishap, ...] = ()
    drops: tuple[str, ...] = ()
    drop_steps: int = 2

    def render(self) -> bytes:
        return json.dumps({**asdict(self), "stage": str(self.stage)}, indent=1).encode()

    @classmethod
    def parse(cls, data: bytes) -> Instructions:
        """Raises ValueError, KeyError or TypeError for what ``render`` did not write."""
        values = json.loads(data)
        return cls(
            **{
                **values,
                "stage": Path(values["stage"]),
                "mishaps": tuple(Mishap(**each) for each in values["mishaps"]),
                "drops": tuple(values["drops"]),
            }
        )


class Stage:
    """The directory: traces, one file for each process, and marks, whose existence is what they say."""

    def __init__(self, directory: Path) -> None:
        self.traces, self.marks = directory / "traces", directory / "marks"

    def make(self) -> None:
        """Make both directories."""
        self.traces.mkdir(parents=True, exist_ok=True)
        self.marks.mkdir(exist_ok=True)

    def mark(self, name: str, **content: Any) -> bool:
        """Set a mark; False where it was set before, whatever it said."""
        return durable.claim_file(self.marks / name, json.dumps(content).encode())

    def is_marked(self, name: str) -> bool:
        return (self.marks / name).exists()

    def read_marks(self, prefix: str) -> dict[str, Mapping[str, Any]]:
        """What every mark that begins with ``prefix`` says, in the order in which they were set."""
        found: list[tuple[int, str, Mapping[str, Any]]] = []
        for path in self.marks.glob(f"{prefix}*"):
            with contextlib.suppress(OSError, ValueError):
                found.append((path.stat().st_mtime_ns, path.name, json.loads(path.read_bytes())))
        return {name: content for _, name, content in sorted(found, key=lambda each: each[:2])}

    def trace(self, attempt: int, restart: int, rank: int) -> TraceWriter:
        """The trace of one worker process."""
        return TraceWriter(self.traces / f"a{attempt:04d}.r{restart}.w{rank:05d}.jsonl")


class TraceWriter:
    """Appends lines that a SIGKILL right after can't take away."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, **fields: Any) -> None:
        os.write(self._fd, json.dumps(fields, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)
