"""The checkpoint writers of a node, one for each of its ranks: older than any worker group, and there for each."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from resilient_launch.checkpoint.background.client import spawn

_END_S = 5.0


def socket_of(directory: Path, local_rank: int) -> Path:
    """Where the writer of a local rank listens."""
    return directory / f"writer.{local_rank}"


class Writers:
    """Started by the node agent, before any worker touches a device; they end with it."""

    def __init__(self, directory: Path, num_ranks: int) -> None:
        self._processes = [spawn(socket_of(directory, local)) for local in range(num_ranks)]

    def close(self) -> None:
        """End them. What the last worker group had to save is saved: its ranks waited for it."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
