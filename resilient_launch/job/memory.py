"""The memory counters of a process's cgroup, version 1 or 2, whichever controls memory on this node."""

from __future__ import annotations

import contextlib
from pathlib import Path

from resilient_launch.policy.oom import MemoryCounters, parse_v1, parse_v2


def memory_cgroup(pid: int | str = "self") -> tuple[Path, int] | None:
    """The directory and version of the cgroup that accounts for a process's memory; None where none is in sight."""
    with contextlib.suppress(OSError, ValueError):
        paths: dict[str, str] = {}
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            paths.update(dict.fromkeys(controllers.split(","), path))
        mounts = [line.split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for fields in mounts:
            kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
            if kind == "cgroup" and "memory" in options and "memory" in paths:
                return _below(fields, paths["memory"]), 1
        for fields in mounts:
            if fields[fields.index("-") + 1] == "cgroup2" and "" in paths:
                return _below(fields, paths[""]), 2
    return None


def _below(mount: list[str], path: str) -> Path:
    """Inside a container the mount shows a part of the hierarchy, and its root says which."""
    root, point = mount[3], mount[4]
    inside = path[len(root) :] if root != "/" and path.startswith(root) else path
    return Path(point) / inside.lstrip("/")


def read_counters(cgroup: tuple[Path, int] | None) -> MemoryCounters | None:
    """What the kernel counted in ``cgroup`` so far; None where it does not say."""
    if cgroup is None:
        return None
    directory, version = cgroup
    with contextlib.suppress(OSError, ValueError):
        if version == 1:
            return parse_v1(
                (directory / "memory.oom_control").read_text(), (directory / "memory.failcnt").read_text().strip()
            )
        return parse_v2((directory / "memory.events").read_text())
    return None
