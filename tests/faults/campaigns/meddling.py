"""What chaos does to a run beside the faults of its configuration: damage to storage, the death of a writer process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path

from resilient_launch.checkpoint.store import published
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import read_ends
from resilient_launch.report.attempts import attempt_rows

WRITER = "resilient_launch.checkpoint.background.process"


class Meddler:
    """Flips a bit of the newest checkpoint after the end of each attempt in ``damages``; kills a writer at each step.

    The run's processes are those with ``root`` in their environment.
    """

    def __init__(self, *, damages: Collection[int], writer_kills: Collection[int], root: Path) -> None:
        self._damages, self._writer_kills, self._root = set(damages), sorted(writer_kills), root
        self.num_done = 0

    def tend(self, paths: RunPaths) -> None:
        """Do what is due. To be called often."""
        for number in self._damages & _interrupted(paths):
            self._damages.discard(number)
            self.num_done += _flip_a_bit(paths.checkpoints)
        if self._writer_kills and _step(paths) >= self._writer_kills[0]:
            self._writer_kills.pop(0)
            self.num_done += _kill_a_writer(self._root)


def _interrupted(paths: RunPaths) -> set[int]:
    """Attempts that ended, and that another one follows."""
    return {number for number, end in read_ends(paths).items() if end.action == "requeue"}


def _step(paths: RunPaths) -> int:
    rows = attempt_rows(paths)
    return (rows[-1].end_step or 0) if rows and rows[-1].cause is None else 0


def _flip_a_bit(checkpoints: Path) -> int:
    """Damage the newest checkpoint; how many were."""
    newest = next(iter(published(checkpoints)), None)
    with contextlib.suppress(OSError, ValueError):
        file = max((checkpoints / str(newest)).glob("*.bin"), key=lambda path: path.stat().st_size)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        return 1
    return 0


def _kill_a_writer(root: Path) -> int:
    """End the first writer process of the run; how many ended."""
    for process in sorted(Path("/proc").glob("[0-9]*")):
        # Any of them may end while it is looked at.
        with contextlib.suppress(OSError):
            is_writer = WRITER.encode() in (process / "cmdline").read_bytes().split(b"\0")
            if is_writer and os.fsencode(root) in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
                return 1
    return 0
