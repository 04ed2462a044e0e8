"""Packing the events of attempts that are over: the same lines under the same names, in a fraction of the space."""

from __future__ import annotations

import time
from dataclasses import dataclass

from resilient_launch.core.events import pack_events
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import read_attempts, read_ends
from resilient_launch.report.reading import event_files
from resilient_launch.report.state import read_verdict

SETTLED_S = 600.0
"""A file that was written to more recently may belong to a process that lives on."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """How many files were packed, and the bytes that gave back. ``errors`` says which could not be."""

    num_files: int
    num_bytes: int
    errors: tuple[str, ...]


def pack_run(paths: RunPaths, *, settled_s: float = SETTLED_S) -> Packed:
    """Pack the events of every attempt that has ended, the newest one's only once the run is over."""
    numbers = [attempt.number for attempt in read_attempts(paths)]
    over = set(read_ends(paths)) & set(numbers if read_verdict(paths) is not None else numbers[:-1])
    num_files = num_bytes = 0
    errors = []
    for number, files in event_files(paths).items():
        for file in files if number in over else ():
            try:
                if time.time() - file.path.stat().st_mtime < settled_s:
                    continue
                saved = pack_events(file.path)
            except OSError as error:
                errors.append(f"{file.path.name}: {(error.strerror or str(error)).lower()}")
                continue
            num_files, num_bytes = num_files + (saved > 0), num_bytes + saved
    return Packed(num_files=num_files, num_bytes=num_bytes, errors=tuple(errors))
