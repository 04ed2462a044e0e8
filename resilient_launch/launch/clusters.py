"""Where a run's Slurm is: the commands on PATH, or those of the fake cluster beside the runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from resilient_launch.cluster.fake.cluster import FakeCluster
from resilient_launch.cluster.fake.spec import FakeSpec
from resilient_launch.cluster.slurm import SlurmCommands

IDLE_EXIT_S = 60.0
"""An embedded fake cluster goes away by itself once nothing has used it for this long."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A scheduler and the environment that its commands are found in. ``fake`` is set for a fake cluster."""

    scheduler: SlurmCommands
    env: Mapping[str, str]
    fake: FakeCluster | None = None


def fake_state_dir(root: Path) -> Path:
    """The state directory of the fake cluster that runs under ``root`` share."""
    return root / ".fake"


def connect(cluster: Literal["slurm", "fake"], root: Path, *, start: FakeSpec | None = None) -> Connection:
    """Reach the cluster of a run under ``root``. ``start`` brings a fake one up if it is not.

    Raises UsageError when a fake cluster of another shape is up already.
    """
    if cluster == "slurm":
        return Connection(scheduler=SlurmCommands(), env=os.environ)
    fake = FakeCluster(fake_state_dir(root))
    if start is not None:
        fake.up(start, idle_exit_s=IDLE_EXIT_S)
    env = {**os.environ, **fake.env()}
    return Connection(scheduler=SlurmCommands(env), env=env, fake=fake)
