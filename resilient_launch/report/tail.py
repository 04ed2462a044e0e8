"""Following a directory of event files that grow, polled because a network file system tells nobody of changes."""

from __future__ import annotations

import contextlib
import heapq
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resilient_launch.core.events import DAMAGE, open_events


class EventTail:
    """Reads what was added to the ``*.jsonl`` files of a directory since last time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: dict[Path, int] = {}
        self._sizes: dict[Path, tuple[int, int]] = {}

    def new(self) -> Iterator[dict[str, Any]]:
        """The events added since the last call, by wall clock; an unfinished last line waits for its end."""
        files = sorted(self._directory.glob("*.jsonl"))
        return heapq.merge(*(self._of(file) for file in files), key=_wall)

    def _of(self, file: Path) -> Iterator[dict[str, Any]]:
        with contextlib.suppress(OSError, *DAMAGE):
            stat = file.stat()
            if self._sizes.get(file) == (stat.st_ino, stat.st_size):
                return
            yield from self._added(file)
            self._sizes[file] = (stat.st_ino, stat.st_size)

    def _added(self, file: Path) -> Iterator[dict[str, Any]]:
        with open_events(file) as lines:
            # A place counts bytes of lines, so that it holds when the file is packed meanwhile.
            lines.seek(self._places.get(file, 0))
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                self._places[file] = self._places.get(file, 0) + len(line)
                with contextlib.suppress(ValueError):
                    record = json.loads(line)
                    if isinstance(record, dict) and isinstance(record.get("kind"), str):
                        yield record


def _wall(record: dict[str, Any]) -> float:
    at = record.get("t")
    return float(at) if isinstance(at, int | float) else 0.0
