"""What a test cluster that tracks processes with cgroups needs of the machine, and leaves on it."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

IDS_PER_CLUSTER = 1000
"""A job's cgroup is named after its id alone: clusters side by side have ids of their own."""
_FREEZER = Path("/sys/fs/cgroup/freezer")


def missing() -> list[str]:
    """What this machine lacks, in words: both Slurms track processes by version 1's freezer, without systemd's help."""
    if not (_FREEZER / "release_agent").exists():
        return ["cgroup version 1 with its freezer in /sys/fs/cgroup/freezer"]
    return [] if os.access(_FREEZER, os.W_OK) and _can_make() else ["leave to make cgroups in /sys/fs/cgroup/freezer"]


def _can_make() -> bool:
    probe = _FREEZER / f"rlaunch_{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def clear(slurm_conf: Path) -> None:
    """Remove the cgroups of the jobs of a cluster whose processes are gone; the ids of its jobs tell which they are."""
    try:
        found = re.search(r"^FirstJobId=(\d+)$", slurm_conf.read_text(), re.MULTILINE)
    except OSError:
        return
    if found is None:
        return
    first = int(found[1])
    for job in _FREEZER.glob("slurm*/uid_*/job_*"):
        number = job.name.removeprefix("job_")
        if number.isdigit() and first <= int(number) < first + IDS_PER_CLUSTER:
            for path in (*sorted(job.rglob("*"), reverse=True), job):
                _remove(path)
    # What holds no other cluster's jobs goes too; the next job of another one makes it anew.
    for place in (*_FREEZER.glob("slurm*/uid_*"), *_FREEZER.glob("slurm*/system"), *_FREEZER.glob("slurm*")):
        _remove(place)


def _remove(path: Path) -> None:
    if path.is_dir():
        with contextlib.suppress(OSError):
            path.rmdir()
