"""What a rehearsed run wrote down, step by step and rank by rank."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Record:
    """One rank between two steps: its state after ``step`` completed ones, and what the last step took in.

    ``attempt`` and ``restart`` (worker group) say whose life it was, ``resumed_from`` where that life began (None: from
    nothing), ``is_first`` whether this is its first moment. ``parts`` are digests by piece of the state, ``tensors`` by
    tensor; ``pieces`` names what the state holds. ``inputs`` is a digest of the step's data, None where unknown;
    ``values`` are what the script logged, ``dropped`` the piece that this life was made to forget.
    """

    step: int
    rank: int = 0
    attempt: int = 0
    restart: int = 0
    world_size: int = 1
    resumed_from: int | None = None
    is_first: bool = False
    dropped: str | None = None
    pieces: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    learning_rates: tuple[float, ...] = ()
    inputs: str | None = None
    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def life(self) -> tuple[int, int]:
        return self.attempt, self.restart


def read_traces(directory: Path) -> list[Record]:
    """Every record below ``directory``, life by life, step by step. A torn line is passed over."""
    found = []
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found.append(_record(json.loads(line)))
    return sorted(found, key=lambda each: (each.life, each.step, each.rank))


def curve(records: Iterable[Record], name: str) -> dict[int, float]:
    """A logged value of the first rank by completed steps; of a step taken more than once, the last time's."""
    return {each.step: each.values[name] for each in records if each.rank == 0 and name in each.values}


def loss_name(records: Sequence[Record]) -> str | None:
    """What the script calls its loss: a logged value of that name, else the first one that is logged."""
    names = list(dict.fromkeys(name for each in records if each.rank == 0 for name in each.values))
    return next((name for name in names if "loss" in name.lower()), next(iter(names), None))


def _record(values: Mapping[str, object]) -> Record:
    known = {name: values[name] for name in Record.__dataclass_fields__ if name in values}
    for name in ("pieces", "learning_rates"):
        known[name] = tuple(known.get(name) or ())  # type: ignore[arg-type]
    return Record(**known)  # type: ignore[arg-type]
