"""A real Slurm on this machine, for as long as it is wanted."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def running(testcluster: ModuleType, *, slurm: Path | None = None, **settings: Any) -> Iterator[dict[str, str]]:
    """An environment whose Slurm commands talk to a real Slurm of four nodes, while the context is open.

    ``testcluster`` is the module of that name; ``settings`` are those of its ClusterSpec.
    """
    # Not pytest's own directory: its path may be too long for the cluster's sockets.
    cluster = testcluster.TestCluster(tempfile.mkdtemp(prefix="rlaunch-slurm-", dir="/tmp"), slurm=slurm)
    cluster.up(testcluster.ClusterSpec(**settings), until_exit_of=os.getpid())
    try:
        yield {**os.environ, **cluster.env()}
    finally:
        cluster.down()
