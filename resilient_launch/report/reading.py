"""The event files of a run: found, told apart, and read in one pass each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilient_launch.core.events import DAMAGE, open_events
from resilient_launch.core.paths import RunPaths
from resilient_launch.policy.told import Damage, Listener, Told

_NAME = re.compile(r"a(\d{4,})\.(?:n(\d+)|r(\d+)\.w(\d+))\.jsonl")


@dataclass(frozen=True, kw_only=True)
class EventFile:
    """A file's place in the run, from its name. ``restart`` and ``rank`` are None for a node agent's file."""

    path: Path
    attempt: int
    node: int | None
    restart: int | None
    rank: int | None


def event_files(paths: RunPaths) -> dict[int, list[EventFile]]:
    """Every event file by attempt; names that are not ours are left out."""
    found: dict[int, list[EventFile]] = {}
    try:
        names = sorted(paths.events.iterdir())
    except OSError:
        return {}
    for path in names:
        if match := _NAME.fullmatch(path.name):
            attempt, node, restart, rank = (None if part is None else int(part) for part in match.groups())
            file = EventFile(path=path, attempt=attempt or 0, node=node, restart=restart, rank=rank)
            found.setdefault(file.attempt, []).append(file)
    return found


def read_file(file: EventFile, damage: Damage, *, with_metrics: bool = False) -> Told:
    """Read one file. One that is unreadable or gone is noted in ``damage`` and tells nothing."""
    listener = Listener(file.restart, file.rank, file.node, damage)
    damage.num_files += 1
    try:
        for record in _records(file.path, damage, with_metrics=with_metrics):
            listener.take(record)
    except (OSError, *DAMAGE) as error:
        why = getattr(error, "strerror", None) or str(error)
        damage.unreadable.append(f"{file.path.name}: {why.lower()}")
    return listener.told()


def _records(path: Path, damage: Damage, *, with_metrics: bool) -> Iterator[dict[str, Any]]:
    with open_events(path) as lines:
        for line in lines:
            if not with_metrics and b'"kind":"metric"' in line[:40]:
                continue
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                record = None
            if isinstance(record, dict) and isinstance(record.get("kind"), str):
                yield record
            else:
                damage.num_damaged_lines += 1
